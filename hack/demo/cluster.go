package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	inCluster   = "cluster"
	clusterName = "demo"
	replicas    = 3
	exitUnfit   = 3
)

// unfitError says why this machine can't run the cluster part.
type unfitError struct{ why string }

func (e *unfitError) Error() string { return e.why }

// cluster shows everything in a local Kubernetes, and takes it down again.
func (d *demo) cluster(ctx context.Context) error {
	program := filepath.Join(d.dir, "cluster")
	if _, err := output(ctx, "go", "build", "-o", program, "./hack/cluster"); err != nil {
		return err
	}
	if err := fit(ctx, program); err != nil {
		return err
	}
	d.out.line("about 2 minutes where this machine has built Kubernetes before; the first build takes about 15 on two cores")
	if err := d.follow(ctx, program, "assets"); err != nil {
		return err
	}
	logs := filepath.Join(os.TempDir(), "sluice-demo-logs")
	if err := d.follow(ctx, program, "up", "--name", clusterName, "--keep-logs", logs); err != nil {
		return err
	}
	failedBefore := d.report.count(false)
	defer func() { d.leave(ctx, program, logs, failedBefore) }()
	k, err := newKubectl(ctx, program)
	if err != nil {
		return err
	}
	if err := d.deploy(ctx, k); err != nil {
		return k.explain(ctx, d.out, err)
	}
	if err := d.tour(ctx, k); err != nil {
		return k.explain(ctx, d.out, err)
	}
	return nil
}

// fit asks whether the machine can run a node.
func fit(ctx context.Context, program string) error {
	_, err := output(ctx, program, "up", "--check")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitUnfit {
		_, why, _ := strings.Cut(err.Error(), "cluster: ")
		return &unfitError{why: why}
	}
	return err
}

// leave takes the cluster down, also after an interrupt, unless it is to be kept.
func (d *demo) leave(ctx context.Context, program, logs string, failedBefore int) {
	if os.Getenv("KEEP") == "1" && ctx.Err() == nil {
		d.out.line("the cluster is left running:")
		d.out.block("export KUBECONFIG=" + kubeconfig + "\nkubectl get rlp -A\n" +
			"curl -i http://$(kubectl -n shop get service shop -o jsonpath='{.spec.clusterIP}')/\n" +
			"make cluster-down CLUSTER=" + clusterName + "   # ends it")
		return
	}
	args := []string{"down", "--name", clusterName}
	if d.report.count(false) > failedBefore {
		args = append(args, "--keep-logs", logs)
		d.out.line("logs are kept in %s", logs)
	}
	d.out.line("taking the cluster down")
	const patience = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := d.follow(ctx, program, args...); err != nil {
		d.report.failed("everything the demo started is gone", err)
		return
	}
	_, err := os.Stat(kubeconfig)
	d.report.expect(errors.Is(err, os.ErrNotExist), "everything the demo started is gone", "the cluster and its folder are removed")
}

// overlay is the operator as this machine's images need it.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
images:
- {name: sluice-operator, newName: localhost/sluice-operator, newTag: dev}
- {name: sluice-sidecar, newName: localhost/sluice-sidecar, newTag: dev}
patches:
- target: {kind: Deployment, name: sluice-operator}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --store-image=localhost/sluice-redis:dev}
`

// deploy installs the operator, then does what a platform engineer and a service team do.
func (d *demo) deploy(ctx context.Context, k kubectl) error {
	d.out.line("building the images")
	if err := d.follow(ctx, "make", "--no-print-directory", "images", "CLUSTER="+clusterName); err != nil {
		return err
	}
	top, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the checkout: %w", err)
	}
	// Kustomize takes no absolute paths.
	base, err := filepath.Rel(d.dir, filepath.Join(top, "config/default"))
	if err != nil {
		return fmt.Errorf("find config/default: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "kustomization.yaml"), fmt.Appendf(nil, overlay, base), 0o600); err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	d.out.line("kubectl apply -k config/default: the operator")
	if err := k.run(ctx, "apply", "--server-side", "-k", d.dir); err != nil {
		return err
	}
	if err := k.run(ctx, "-n", "sluice-system", "rollout", "status", "deployment/sluice-operator", "--timeout=3m"); err != nil {
		return err
	}
	return d.deployShop(ctx, k)
}

func (d *demo) deployShop(ctx context.Context, k kubectl) error {
	d.out.line("kubectl apply -k config/samples: a store, a policy, and an annotated Deployment of %d replicas", replicas)
	// The API server learns of a new webhook a moment after it is there.
	const patience = time.Minute
	if _, err := await(ctx, d.clock, patience, func() (bool, error) {
		err := k.run(ctx, "apply", "-k", "config/samples")
		return err == nil, err
	}); err != nil {
		return err
	}
	jwks, err := d.issuer.jwks()
	if err != nil {
		return err
	}
	if err := k.run(ctx, "-n", "shop", "patch", "configmap", "shop-jwks", "--type=merge",
		"-p", fmt.Sprintf(`{"data":{"jwks.json":%q}}`, jwks)); err != nil {
		return err
	}
	return k.run(ctx, "-n", "shop", "rollout", "status", "deployment/shop", "--timeout=3m")
}
