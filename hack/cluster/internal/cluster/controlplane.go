package cluster

import (
	"context"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

const (
	etcdPort  = "2379"
	etcdPeers = "2380"

	// frontProxy is the API server in the eyes of servers that extend the API.
	frontProxy = "front-proxy-client"

	apiServerPatience = 90 * time.Second
)

// startControlPlane starts etcd, the API server and, once that answers, those
// who work through it.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	for _, process := range []string{"etcd", "kube-apiserver"} {
		if err := c.startControl(process); err != nil {
			return err
		}
	}
	api, err := newAPIClient(c.state.Plan)
	if err != nil {
		return err
	}
	err = c.await(ctx, "the API server is not ready", c.state.Plan.logFile("kube-apiserver"), apiServerPatience,
		func(ctx context.Context) error { return api.get(ctx, "/readyz", nil) })
	if err != nil {
		return err
	}
	c.Log.Printf("the API server answers at %s", api.server)
	for _, process := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.startControl(process); err != nil {
			return err
		}
	}
	return nil
}

// startControl starts one process of the control plane.
func (c *Cluster) startControl(process string) error {
	arguments := map[string]func(Plan) []string{
		"etcd":                    etcdArgs,
		"kube-apiserver":          apiServerArgs,
		"kube-controller-manager": controllerManagerArgs,
		"kube-scheduler":          schedulerArgs,
	}
	return c.start(host.Spec{
		Name: process,
		Path: c.Catalog.Path(process),
		Args: arguments[process](c.state.Plan),
		Log:  c.state.Plan.logFile(process),
	})
}

func etcdArgs(p Plan) []string {
	clients := "http://" + p.Loopback().String() + ":" + etcdPort
	peers := "http://" + p.Loopback().String() + ":" + etcdPeers
	return []string{
		"--data-dir=" + p.file("etcd"),
		"--listen-client-urls=" + clients,
		"--advertise-client-urls=" + clients,
		"--listen-peer-urls=" + peers,
		"--initial-advertise-peer-urls=" + peers,
		"--initial-cluster=default=" + peers,
		// A cluster that does not outlive the machine's next start need not survive a power cut.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func apiServerArgs(p Plan) []string {
	return []string{
		"--etcd-servers=http://" + p.Loopback().String() + ":" + etcdPort,
		"--bind-address=" + p.HostAddress().String(),
		"--advertise-address=" + p.HostAddress().String(),
		"--service-cluster-ip-range=" + p.ServiceRange().String(),
		"--cert-dir=" + p.file("pki"),
		"--client-ca-file=" + p.file("pki", "ca.crt"),
		"--tls-cert-file=" + p.file("pki", "apiserver.crt"),
		"--tls-private-key-file=" + p.file("pki", "apiserver.key"),
		"--kubelet-client-certificate=" + p.file("pki", "kubelet-client.crt"),
		"--kubelet-client-key=" + p.file("pki", "kubelet-client.key"),
		// The names of nodes mean nothing to the machine's own DNS.
		"--kubelet-preferred-address-types=InternalIP",
		// Servers that extend the API know by these whom to believe.
		"--requestheader-client-ca-file=" + p.file("pki", "ca.crt"),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.file("pki", "front-proxy.crt"),
		"--proxy-client-key-file=" + p.file("pki", "front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.file("pki", "tokens.key"),
		"--service-account-signing-key-file=" + p.file("pki", "tokens.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
	}
}

func controllerManagerArgs(p Plan) []string {
	return append(
		componentArgs(p, p.file("pki", "controller-manager.kubeconfig")),
		"--use-service-account-credentials",
		"--root-ca-file="+p.file("pki", "ca.crt"),
		"--service-account-private-key-file="+p.file("pki", "tokens.key"),
		"--cluster-signing-cert-file="+p.file("pki", "ca.crt"),
		"--cluster-signing-key-file="+p.file("pki", "ca.key"),
		"--flex-volume-plugin-dir="+p.file("volume-plugins"),
		// Each controller gets an account of its own when it starts; at the usual pace
		// that takes seconds.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	)
}

func schedulerArgs(p Plan) []string {
	return componentArgs(p, p.file("pki", "scheduler.kubeconfig"))
}

// componentArgs are common to those who work through the API server. There is
// one of each, so none has to be elected.
func componentArgs(p Plan, kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + p.Loopback().String(),
		"--leader-elect=false",
		"--profiling=false",
	}
}
