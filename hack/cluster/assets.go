package main

import (
	"context"
	"fmt"

	"github.com/sluice-dev/sluice/hack/cluster/internal/assets"
	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
)

const assetsHelp = `Builds the pinned programs of a cluster from their Go modules into the cache
folder ($SLUICE_CACHE, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice). The
first time takes minutes; after that there is nothing to do. An interrupted run
goes on where it stopped. Where setup-envtest can download the programs that
envtest needs, they are taken instead (never if SLUICE_PREBUILT=never).`

func runAssets(ctx context.Context, call invocation) error {
	set := call.flags("[--only envtest|all] [--print-path]", assetsHelp)
	only := set.String("only", string(assets.All), "what to build: `envtest` (etcd, kube-apiserver, kubectl) or all")
	printPath := set.Bool("print-path", false, "build nothing, only print the folder for KUBEBUILDER_ASSETS")
	if _, err := call.parse(set, 0); err != nil {
		return err
	}
	if *only != string(assets.All) && *only != string(assets.Envtest) {
		return wrongUsage("assets: --only is envtest or all, not %q", *only)
	}
	binaries, err := catalog()
	if err != nil {
		return err
	}
	if *printPath {
		_, err := fmt.Fprintln(call.stdout, binaries.EnvtestDir())
		return err
	}
	return assets.NewProvider(binaries, call.log(), clock.Wall{}).Ensure(ctx, assets.Set(*only))
}
