package main

import (
	"context"
	"flag"
	"path/filepath"

	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
	"github.com/sluice-dev/sluice/hack/cluster/internal/cluster"
	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

const defaultName = "dev"

// nameFlag adds the flag that says which cluster is meant.
func nameFlag(set *flag.FlagSet) *string {
	return set.String("name", defaultName, "the cluster's `name`; several can run side by side")
}

// tools gathers what the operations on clusters need.
func (i invocation) tools() (cluster.Tools, error) {
	binaries, err := catalog()
	if err != nil {
		return cluster.Tools{}, err
	}
	return cluster.Tools{
		Catalog:  binaries,
		Registry: cluster.Registry{Dir: cluster.RegistryDir},
		Log:      i.log(),
		Clock:    clock.Wall{},
	}, nil
}

// folder is where a cluster keeps all its files.
func folder(name, chosen string) (string, error) {
	if chosen == "" {
		return filepath.Join(cluster.ClustersDir, name), nil
	}
	return filepath.Abs(chosen)
}

const upHelp = `Starts a cluster on this machine and waits until its nodes are ready and its DNS
answers. Builds the programs first if need be, and installs what is missing from
the distribution. Needs root. If it fails it shows the end of the log that may
tell why and takes everything down again.`

func runUp(ctx context.Context, call invocation) error {
	set := call.flags("[--name NAME] [--nodes N] [--dir DIR] [--keep-logs DIR] [--check]", upHelp)
	name := nameFlag(set)
	nodes := set.Int("nodes", 1, "how many nodes")
	dir := set.String("dir", "", "keep the cluster's files in `DIR` instead of "+cluster.ClustersDir+"/NAME")
	keepLogs := set.String("keep-logs", "", "if it fails, copy the logs to `DIR`")
	check := set.Bool("check", false, "only check whether this machine can run a cluster")
	if _, err := call.parse(set, 0); err != nil {
		return err
	}
	if *check {
		return runCheck(ctx, call)
	}
	where, err := folder(*name, *dir)
	if err != nil {
		return err
	}
	plan := cluster.Plan{Name: *name, Dir: where, Nodes: *nodes}
	if err := plan.Check(); err != nil {
		return wrongUsage("up: %v", err)
	}
	tools, err := call.tools()
	if err != nil {
		return err
	}
	if err := cluster.Up(ctx, tools, plan, *keepLogs); err != nil {
		return err
	}
	tools.Log.Printf("cluster %s is up: export KUBECONFIG=%s", plan.Name, plan.Kubeconfig())
	tools.Log.Printf("kubectl is %s", tools.Catalog.Path("kubectl"))
	return nil
}

func runCheck(ctx context.Context, call invocation) error {
	if err := host.Check(ctx); err != nil {
		return err
	}
	call.log().Printf("this machine can run a cluster")
	return nil
}

const downHelp = `Ends a cluster and removes every trace of it: processes, containers, mounts,
control groups, networks and files. Works whatever state the cluster is in. A
cluster that is not there is fine.`

func runDown(ctx context.Context, call invocation) error {
	set := call.flags("[--name NAME] [--dir DIR] [--keep-logs DIR]", downHelp)
	name := nameFlag(set)
	dir := set.String("dir", "", "where its files are, if the machine was rebooted since and `DIR` is not "+cluster.ClustersDir+"/NAME")
	keepLogs := set.String("keep-logs", "", "copy the logs to `DIR` first")
	if _, err := call.parse(set, 0); err != nil {
		return err
	}
	where, err := folder(*name, *dir)
	if err != nil {
		return err
	}
	tools, err := call.tools()
	if err != nil {
		return err
	}
	return cluster.Down(ctx, tools, *name, where, *keepLogs)
}

const statusHelp = `Shows each cluster of this machine: where it is and which of its processes live.`

func runStatus(ctx context.Context, call invocation) error {
	set := call.flags("[--name NAME]", statusHelp)
	name := set.String("name", "", "only the cluster of this `name`")
	if _, err := call.parse(set, 0); err != nil {
		return err
	}
	tools, err := call.tools()
	if err != nil {
		return err
	}
	return cluster.Status(ctx, tools, *name, call.stdout)
}
