package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

const (
	runtimePatience = 30 * time.Second
	nodePatience    = 90 * time.Second
)

// startRuntimes starts each node's container runtime and gives it the images
// that every node needs.
func (c *Cluster) startRuntimes(ctx context.Context) error {
	images, err := c.baseImages()
	if err != nil {
		return err
	}
	p := c.state.Plan
	err = p.eachNode(func(node int) error {
		if err := c.writeNodeFiles(node); err != nil {
			return err
		}
		return c.startRuntime(ctx, node)
	})
	if err != nil {
		return err
	}
	return c.importImages(ctx, images)
}

// startRuntime starts a node's container runtime and waits until it answers.
func (c *Cluster) startRuntime(ctx context.Context, node int) error {
	p := c.state.Plan
	process := p.process("containerd", node)
	err := c.start(host.Spec{
		Name:      process,
		Path:      host.Find("containerd"),
		Args:      []string{"--config", p.nodeFile(node, "containerd.toml")},
		Namespace: p.NodeNamespace(node),
		Log:       p.logFile(process),
	})
	if err != nil {
		return err
	}
	return c.await(ctx, "the container runtime does not answer", p.logFile(process), runtimePatience,
		func(ctx context.Context) error {
			_, err := c.ctr(ctx, node, "version")
			return err
		})
}

// process names a node's process.
func (p Plan) process(program string, node int) string { return program + "-node" + strconv.Itoa(node) }

// ctr asks a node's container runtime for something, among Kubernetes' containers.
func (c *Cluster) ctr(ctx context.Context, node int, args ...string) (string, error) {
	socket := c.state.Plan.nodeFile(node, "containerd.sock")
	if connection, err := net.Dial("unix", socket); err != nil { //nolint:noctx // a local socket answers at once
		return "", fmt.Errorf("calling the container runtime: %w", err)
	} else if err := connection.Close(); err != nil {
		return "", fmt.Errorf("calling the container runtime: %w", err)
	}
	return host.Output(ctx, nil, "ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
}

// writeNodeFiles writes the configuration of all of a node's programs.
func (c *Cluster) writeNodeFiles(node int) error {
	p := c.state.Plan
	dir := p.nodeFile(node)
	// Pods ask the cluster's DNS and nothing else.
	if err := os.WriteFile(p.nodeFile(node, "resolv.conf"), nil, 0o600); err != nil {
		return fmt.Errorf("saving the node's resolver configuration: %w", err)
	}
	values := map[string]string{
		"Dir":           dir,
		"PauseImage":    pauseReference,
		"CNIDir":        host.CNIDir,
		"Snapshotter":   snapshotter(dir),
		"Network":       p.NodeNamespace(node),
		"PodRange":      p.PodRange(node).String(),
		"AuthorityFile": p.file("pki", "ca.crt"),
		"ControlGroup":  p.ControlGroup(node),
		"DNSAddress":    p.DNSAddress().String(),
		"NodeName":      p.NodeName(node),
		"Kubeconfig":    p.file("pki", "proxy.kubeconfig"),
		"PodsRange":     p.PodsRange().String(),
		"HidesCallers":  "",
	}
	if p.Nodes > 1 {
		values["HidesCallers"] = "yes"
	}
	for file, name := range map[string]string{
		"containerd.toml":   "containerd.toml",
		"cni/pods.conflist": "pods.conflist",
		"kubelet.yaml":      "kubelet.yaml",
		"kube-proxy.yaml":   "kube-proxy.yaml",
	} {
		if err := renderTo(p.nodeFile(node, file), name, values); err != nil {
			return err
		}
	}
	return nil
}

// snapshotter chooses how image layers are put together: by the kernel's
// overlays, or by copying where those do not work, as on some overlays themselves.
func snapshotter(dir string) string {
	if host.OverlaysWork(dir) {
		return "overlayfs"
	}
	return "native"
}

// startNodes lets each node join the cluster and waits until all are ready.
func (c *Cluster) startNodes(ctx context.Context) error {
	p := c.state.Plan
	if err := p.eachNode(c.startNode); err != nil {
		return err
	}
	api, err := newAPIClient(p)
	if err != nil {
		return err
	}
	err = c.await(ctx, "not every node is ready", p.logFile(p.process("kubelet", 0)), nodePatience,
		func(ctx context.Context) error {
			var nodes nodeList
			if err := api.get(ctx, "/api/v1/nodes", &nodes); err != nil {
				return err
			}
			return nodes.unready(p.Nodes)
		})
	if err != nil {
		return err
	}
	c.Log.Printf("%s ready", count(p.Nodes, "node"))
	return nil
}

func (c *Cluster) startNode(node int) error {
	p := c.state.Plan
	if err := host.MakeControlGroup(p.ControlGroup(node)); err != nil {
		return err
	}
	for program, args := range map[string][]string{
		"kubelet": {
			"--config=" + p.nodeFile(node, "kubelet.yaml"),
			"--kubeconfig=" + p.nodeFile(node, "kubeconfig"),
			"--root-dir=" + p.nodeFile(node, "kubelet"),
			"--cert-dir=" + p.nodeFile(node, "kubelet-pki"),
			"--hostname-override=" + p.NodeName(node),
			"--node-ip=" + p.NodeAddress(node).String(),
		},
		"kube-proxy": {"--config=" + p.nodeFile(node, "kube-proxy.yaml")},
	} {
		process := p.process(program, node)
		err := c.start(host.Spec{
			Name: process, Path: c.Catalog.Path(program), Args: args,
			Namespace: p.NodeNamespace(node), Log: p.logFile(process),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
