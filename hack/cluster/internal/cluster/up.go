package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/assets"
	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// cleanUpPatience bounds taking down what failed to come up.
const cleanUpPatience = 2 * time.Minute

// Up starts a cluster and waits until its nodes are ready and its DNS answers.
// If that fails it shows the end of the log that may tell why, and takes down
// what it started; the logs are copied to keepLogs if that is not empty.
func Up(ctx context.Context, t Tools, p Plan, keepLogs string) error {
	if err := makeFit(ctx, t); err != nil {
		return err
	}
	if err := assets.NewProvider(t.Catalog, t.Log, t.Clock).Ensure(ctx, assets.All); err != nil {
		return err
	}
	state, err := t.Registry.Claim(p)
	if err != nil {
		return err
	}
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	c := &Cluster{Tools: t, state: state, broken: broken}
	if err := c.bringUp(ctx); err != nil {
		c.explain(err)
		return errors.Join(err, c.giveUp(ctx, keepLogs))
	}
	return nil
}

// makeFit checks the machine and installs what it lacks.
func makeFit(ctx context.Context, t Tools) error {
	if err := host.Check(ctx); err != nil {
		return err
	}
	installed, err := host.Install(ctx, t.Log, host.NodePackages)
	if err != nil || !installed {
		return err
	}
	return host.Check(ctx)
}

// bringUp does everything from an empty folder to a working cluster.
func (c *Cluster) bringUp(ctx context.Context) error {
	p := c.state.Plan
	c.Log.Printf("starting cluster %s with %s in %s", p.Name, count(p.Nodes, "node"), p.Dir)
	err := inOrder(ctx, c.prepare, c.buildNetwork)
	if err != nil {
		return err
	}
	err = together(ctx,
		func(ctx context.Context) error { return inOrder(ctx, c.startControlPlane, c.startDNS) },
		c.startRuntimes,
	)
	if err != nil {
		return err
	}
	if err := inOrder(ctx, c.startNodes, c.awaitDNS); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Ready = true
	return c.Registry.Save(c.state)
}

// prepare makes the cluster's folders and credentials.
func (c *Cluster) prepare(context.Context) error {
	p := c.state.Plan
	if err := p.vacate(); err != nil {
		return err
	}
	dirs := []string{p.Dir, p.Logs(), p.file("pki"), p.file("images"), p.file("etcd")}
	for node := range p.Nodes {
		dirs = append(dirs, p.nodeFile(node, "cni"), p.nodeFile(node, "containerd"))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the cluster's folder: %w", err)
		}
	}
	const why = "This folder belongs to a local cluster; taking the cluster down removes it.\n"
	if err := os.WriteFile(p.marker(), []byte(why), 0o600); err != nil {
		return fmt.Errorf("marking the cluster's folder: %w", err)
	}
	return c.writeCredentials(c.Clock.Now())
}

// vacate removes what a cluster left in the folder before a reboot, and refuses
// a folder that holds anything else.
func (p Plan) vacate() error {
	entries, err := os.ReadDir(p.Dir)
	if os.IsNotExist(err) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking into the cluster's folder: %w", err)
	}
	return p.removeFolder()
}

// removeFolder removes the cluster's folder, if it is one.
func (p Plan) removeFolder() error {
	if _, err := os.Stat(p.Dir); os.IsNotExist(err) {
		return nil
	}
	if _, err := os.Stat(p.marker()); err != nil {
		return fmt.Errorf("%s holds something other than a cluster; it stays as it is", p.Dir)
	}
	if err := host.Unmount(p.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(p.Dir); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	if filepath.Dir(p.Dir) == ClustersDir {
		_ = os.Remove(ClustersDir) // goes only with the last cluster
	}
	return nil
}

// explain shows the end of the log that may tell why something failed.
func (c *Cluster) explain(err error) {
	const lines = 15
	var failure *FailureError
	if !errors.As(err, &failure) {
		return
	}
	c.Log.Printf("%v; the last lines of %s:", failure, failure.Log)
	for line := range strings.Lines(host.Tail(failure.Log, lines)) {
		c.Log.Printf("  %s", strings.TrimRight(line, "\n"))
	}
}

// giveUp takes down what was started, even when the reason is that the caller
// wants to stop.
func (c *Cluster) giveUp(ctx context.Context, keepLogs string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpPatience)
	defer cancel()
	return c.takeDown(ctx, keepLogs)
}
