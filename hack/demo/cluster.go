package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-dev/sluice/hack/testbed"
)

const (
	inCluster   = "cluster"
	clusterName = "demo"
	replicas    = 3
)

// cluster shows everything in a local Kubernetes, and takes it down again.
func (d *demo) cluster(ctx context.Context) error {
	bed, err := testbed.New(ctx, clusterName, ".", d.dir, d.out.block)
	if err != nil {
		return err
	}
	if err := bed.Fit(ctx); err != nil {
		return err
	}
	d.out.line("about 2 minutes where this machine has built Kubernetes before; the first build takes about 15 on two cores")
	logs := filepath.Join(os.TempDir(), "sluice-demo-logs")
	if err := bed.Up(ctx, logs); err != nil {
		return err
	}
	failedBefore := d.report.count(false)
	defer func() { d.leave(ctx, bed, logs, failedBefore) }()
	k, err := bed.Kubectl(ctx)
	if err != nil {
		return err
	}
	if err := d.deploy(ctx, bed, k); err != nil {
		d.out.block(k.Diagnosis(context.WithoutCancel(ctx), "shop"))
		return err
	}
	if err := d.tour(ctx, k); err != nil {
		d.out.block(k.Diagnosis(context.WithoutCancel(ctx), "shop"))
		return err
	}
	return nil
}

// leave takes the cluster down, also after an interrupt, unless it is to be kept.
func (d *demo) leave(ctx context.Context, bed *testbed.Testbed, logs string, failedBefore int) {
	if os.Getenv("KEEP") == "1" && ctx.Err() == nil {
		d.out.line("the cluster is left running:")
		d.out.block("export KUBECONFIG=" + bed.Kubeconfig() + "\nkubectl get rlp -A\n" +
			"curl -i http://$(kubectl -n shop get service shop -o jsonpath='{.spec.clusterIP}')/\n" +
			"make cluster-down CLUSTER=" + clusterName + "   # ends it")
		return
	}
	if d.report.count(false) == failedBefore {
		logs = ""
	} else {
		d.out.line("logs are kept in %s", logs)
	}
	d.out.line("taking the cluster down")
	const patience = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := bed.Down(ctx, logs); err != nil {
		d.report.failed("everything the demo started is gone", err)
		return
	}
	_, err := os.Stat(bed.Kubeconfig())
	d.report.expect(errors.Is(err, os.ErrNotExist), "everything the demo started is gone", "the cluster and its folder are removed")
}

// deploy installs the operator, then does what a platform engineer and a service team do.
func (d *demo) deploy(ctx context.Context, bed *testbed.Testbed, k testbed.Kubectl) error {
	d.out.line("building the images")
	if err := bed.Images(ctx); err != nil {
		return err
	}
	d.out.line("kubectl apply -k config/default: the operator")
	if err := bed.Install(ctx, k); err != nil {
		return err
	}
	return d.deployShop(ctx, k)
}

func (d *demo) deployShop(ctx context.Context, k testbed.Kubectl) error {
	d.out.line("kubectl apply -k config/samples: a store, a policy, and an annotated Deployment of %d replicas", replicas)
	// The API server learns of a new webhook a moment after it is there.
	const patience = time.Minute
	if _, err := testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		err := k.Run(ctx, "apply", "-k", "config/samples")
		return err == nil, err
	}); err != nil {
		return err
	}
	jwks, err := d.issuer.jwks()
	if err != nil {
		return err
	}
	if err := k.Run(ctx, "-n", "shop", "patch", "configmap", "shop-jwks", "--type=merge",
		"-p", fmt.Sprintf(`{"data":{"jwks.json":%q}}`, jwks)); err != nil {
		return err
	}
	return k.Run(ctx, "-n", "shop", "rollout", "status", "deployment/shop", "--timeout=3m")
}
