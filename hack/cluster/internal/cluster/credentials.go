package cluster

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
)

// user is one who speaks to the API server, and the file with its credentials.
type user struct {
	name   string
	groups []string
	file   string
}

// admin has all rights on the cluster.
func (p Plan) admin() user {
	return user{name: "sluice-admin", groups: []string{"system:masters"}, file: p.Kubeconfig()}
}

// users lists everyone who speaks to the API server; Kubernetes knows by their
// names what they may do.
func (p Plan) users() []user {
	others := []user{
		p.admin(),
		{name: "system:kube-controller-manager", file: p.file("pki", "controller-manager.kubeconfig")},
		{name: "system:kube-scheduler", file: p.file("pki", "scheduler.kubeconfig")},
		{name: "system:kube-proxy", file: p.file("pki", "proxy.kubeconfig")},
	}
	nodes := make([]user, p.Nodes)
	for node := range nodes {
		nodes[node] = user{
			name:   "system:node:" + p.NodeName(node),
			groups: []string{"system:nodes"},
			file:   p.nodeFile(node, "kubeconfig"),
		}
	}
	return slices.Concat(others, nodes)
}

// writeCredentials makes an authority and all the keys, certificates and
// kubeconfigs of the cluster.
func (c *Cluster) writeCredentials(now time.Time) error {
	p := c.state.Plan
	a, err := newAuthority(now)
	if err != nil {
		return err
	}
	if err := p.writePairs(a); err != nil {
		return err
	}
	for _, u := range p.users() {
		content, err := p.kubeconfig(a, u)
		if err != nil {
			return err
		}
		if err := os.WriteFile(u.file, content, 0o600); err != nil {
			return fmt.Errorf("saving the credentials of %s: %w", u.name, err)
		}
	}
	return nil
}

// writePairs saves what the control plane itself reads: the authority, the API
// server's certificates and the key that signs ServiceAccount tokens.
func (p Plan) writePairs(a *authority) error {
	own, err := a.own()
	if err != nil {
		return err
	}
	server, err := a.server(
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		[]netip.Addr{p.HostAddress(), p.APIServiceAddress(), p.Loopback()},
	)
	if err != nil {
		return err
	}
	pairs := map[string]pair{"ca": own, "apiserver": server}
	for name, u := range map[string]user{
		"kubelet-client": {name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		"front-proxy":    {name: frontProxy},
		"tokens":         {name: "service-accounts"},
	} {
		if pairs[name], err = a.client(u.name, u.groups...); err != nil {
			return err
		}
	}
	for name, one := range pairs {
		if err := one.write(p.file("pki"), name); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig issues a certificate for the user and writes it down in the form
// that clients of Kubernetes read.
func (p Plan) kubeconfig(a *authority, u user) ([]byte, error) {
	own, err := a.own()
	if err != nil {
		return nil, err
	}
	issued, err := a.client(u.name, u.groups...)
	if err != nil {
		return nil, err
	}
	return render("kubeconfig.yaml", map[string]string{
		"Cluster":     "sluice-" + p.Name,
		"Server":      p.Server(),
		"User":        u.name,
		"Authority":   base64.StdEncoding.EncodeToString(own.certificate),
		"Certificate": base64.StdEncoding.EncodeToString(issued.certificate),
		"Key":         base64.StdEncoding.EncodeToString(issued.key),
	})
}
