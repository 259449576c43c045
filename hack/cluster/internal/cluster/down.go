package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

const (
	// killPatience is how long killed processes may take to go.
	killPatience = 10 * time.Second
	// containerPatience is how long killed containers may take to go.
	containerPatience = 30 * time.Second
)

// Down ends a cluster and removes every trace of it, whatever state it is in. A
// cluster that is not there is fine.
func Down(ctx context.Context, t Tools, name, dir, keepLogs string) error {
	state, err := t.Registry.Load(name)
	if errors.Is(err, ErrNoCluster) {
		return forgotten(ctx, t, Plan{Name: name, Dir: dir, Nodes: MaxNodes})
	}
	if err != nil {
		return err
	}
	c := &Cluster{Tools: t, state: state, broken: func(error) {}}
	if err := c.takeDown(ctx, keepLogs); err != nil {
		return err
	}
	t.Log.Printf("cluster %s is gone", name)
	return nil
}

// forgotten removes what a cluster left behind whose record is lost, as it is
// after a reboot.
func forgotten(ctx context.Context, t Tools, p Plan) error {
	if _, err := os.Stat(p.marker()); os.IsNotExist(err) {
		t.Log.Printf("there is no cluster %s: nothing to do", p.Name)
		return nil
	}
	if err := errors.Join(p.removeNamespaces(ctx), p.removeFolder()); err != nil {
		return err
	}
	t.Log.Printf("removed what was left of cluster %s in %s", p.Name, p.Dir)
	return nil
}

// takeDown ends and removes everything, going on past errors: what is left when
// one thing fails should be that thing alone. The record is kept until nothing
// is left, so that it can be tried again.
func (c *Cluster) takeDown(ctx context.Context, keepLogs string) error {
	p := c.state.Plan
	err := errors.Join(
		// First those who would start containers again.
		c.killAll(ctx, "kubelet-", "kube-proxy-"),
		p.everyNode(func(node int) error { return c.endContainers(ctx, node) }),
		c.killAll(ctx, ""),
		host.Unmount(p.Dir),
		p.everyNode(func(node int) error { return host.RemoveControlGroup(p.ControlGroup(node)) }),
		p.removeNetwork(ctx),
		p.removeStrays(),
		p.keepLogs(keepLogs),
	)
	if err != nil {
		return fmt.Errorf("taking cluster %s down: %w", p.Name, err)
	}
	if err := p.removeFolder(); err != nil {
		return err
	}
	return c.Registry.Release(p.Name)
}

// killAll ends the processes whose names begin with one of the prefixes.
func (c *Cluster) killAll(ctx context.Context, prefixes ...string) error {
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	var errs []error
	for _, p := range c.state.Processes {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			errs = append(errs, p.Kill(ctx, c.Clock))
		}
	}
	return errors.Join(errs...)
}

// endContainers ends a node's containers through its runtime, which alone knows
// all that belongs to them. A runtime that has died is started once more for it.
func (c *Cluster) endContainers(ctx context.Context, node int) error {
	p := c.state.Plan
	if _, err := os.Stat(p.nodeFile(node, "containerd.sock")); os.IsNotExist(err) {
		return nil
	}
	if _, err := c.ctr(ctx, node, "version"); err != nil {
		if err := c.startRuntime(ctx, node); err != nil {
			return err
		}
	}
	return c.await(ctx, "containers do not end", p.logFile(p.process("containerd", node)), containerPatience,
		func(ctx context.Context) error { return c.killContainers(ctx, node) })
}

// killContainers kills every container of a node and returns nil once there is
// none. The runtime itself removes those that end, so a failed removal only
// means that it was faster.
func (c *Cluster) killContainers(ctx context.Context, node int) error {
	list, err := c.ctr(ctx, node, "tasks", "list", "--quiet")
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	tasks := strings.Fields(list)
	if len(tasks) == 0 {
		return nil
	}
	var kills []func(context.Context) error
	for _, task := range tasks {
		kills = append(kills, func(context.Context) error {
			_, err := c.ctr(ctx, node, "tasks", "delete", "--force", task)
			return err
		})
	}
	return errors.Join(fmt.Errorf("%s left", count(len(tasks), "container")), together(ctx, kills...))
}

// removeStrays removes what the node's programs keep in places that cannot be
// configured: the network plugins' notes and the kubelet's links to logs.
func (p Plan) removeStrays() error {
	err := errors.Join(
		p.everyNode(func(node int) error { return removeNotes(p.NodeNamespace(node)) }),
		p.removeLogLinks(),
	)
	removeDeadSocket(devicesSocket)
	for _, dir := range []string{
		notesDir, filepath.Dir(notesDir), logLinksDir,
		filepath.Dir(devicesSocket), filepath.Dir(filepath.Dir(devicesSocket)),
		shimSocketsDir, filepath.Dir(shimSocketsDir),
	} {
		_ = os.Remove(dir) // goes only if nothing is in it
	}
	return err
}

// Places that the node's programs use whatever they are told.
const (
	notesDir       = "/var/lib/cni/results"
	logLinksDir    = "/var/log/containers"
	devicesSocket  = "/var/lib/kubelet/device-plugins/kubelet.sock"
	shimSocketsDir = "/run/containerd/s"
)

// removeDeadSocket removes a socket at which nobody listens.
func removeDeadSocket(name string) {
	connection, err := net.Dial("unix", name) //nolint:noctx // a local socket answers at once
	if err == nil {
		_ = connection.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(name)
	}
}

// removeNotes removes the network plugins' notes about a node's pods: one of the
// node's network and one of the loopback for each, both named by the sandbox.
func removeNotes(network string) error {
	notes, err := filepath.Glob(filepath.Join(notesDir, network+"-*-eth0"))
	errs := []error{err}
	for _, note := range notes {
		sandbox := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(note), network+"-"), "-eth0")
		loopback := filepath.Join(notesDir, "cni-loopback-"+sandbox+"-lo")
		if err := os.Remove(loopback); err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
		errs = append(errs, os.Remove(note))
	}
	return errors.Join(errs...)
}

// removeLogLinks removes the kubelet's links to logs in the cluster's folder.
func (p Plan) removeLogLinks() error {
	links, err := filepath.Glob(filepath.Join(logLinksDir, "*"))
	errs := []error{err}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, p.Dir+"/") {
			errs = append(errs, os.Remove(link))
		}
	}
	return errors.Join(errs...)
}

// keepLogs copies the logs of all processes and pods out of the cluster's folder.
func (p Plan) keepLogs(into string) error {
	if into == "" {
		return nil
	}
	copies := map[string]string{into: p.Logs()}
	for node := range p.Nodes {
		copies[filepath.Join(into, p.NodeName(node))] = p.nodeFile(node, "pod-logs")
	}
	for to, from := range copies {
		if _, err := os.Stat(from); os.IsNotExist(err) {
			continue
		}
		if err := host.CopyFiles(to, from); err != nil {
			return fmt.Errorf("keeping logs: %w", err)
		}
	}
	return nil
}
