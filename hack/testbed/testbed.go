// Package testbed brings up a local cluster with Sluice in it, built from this checkout, for the demo and the end-to-end
// tests. It knows the project as a contributor does: by its make targets, its manifests and hack/cluster.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// exitUnfit is how hack/cluster says that a machine can't run a node.
const exitUnfit = 3

// UnfitError says why this machine can't run a cluster.
type UnfitError struct{ Why string }

func (e *UnfitError) Error() string { return e.Why }

// Testbed is one local cluster, up or not.
type Testbed struct {
	// Name tells clusters on one machine apart.
	Name string
	// top is the checkout, scratch a folder of the caller's, program the built hack/cluster.
	top, scratch, program string
	show                  func(line string)
}

// New prepares a testbed of the checkout in the folder top. It keeps files in scratch, and shows what programs say.
func New(ctx context.Context, name, top, scratch string, show func(line string)) (*Testbed, error) {
	t := &Testbed{Name: name, top: top, scratch: scratch, program: filepath.Join(scratch, "cluster"), show: show}
	_, err := Output(ctx, top, "", "go", "build", "-o", t.program, "./hack/cluster")
	return t, err
}

// Fit fails with an *UnfitError where the machine can't run a node.
func (t *Testbed) Fit(ctx context.Context) error {
	_, err := Output(ctx, t.top, "", t.program, "up", "--check")
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() == exitUnfit {
		_, why, _ := strings.Cut(err.Error(), "cluster: ")
		return &UnfitError{Why: why}
	}
	return err
}

// Kubeconfig is where the cluster keeps its administrator's credentials.
func (t *Testbed) Kubeconfig() string {
	return filepath.Join("/var/lib/sluice-cluster", t.Name, "kubeconfig")
}

// Up builds Kubernetes if need be and starts the cluster. If that fails, the logs are kept in a folder.
func (t *Testbed) Up(ctx context.Context, keepLogs string) error {
	if err := t.follow(ctx, t.program, "assets"); err != nil {
		return err
	}
	return t.follow(ctx, t.program, "up", "--name", t.Name, "--keep-logs", keepLogs)
}

// Down takes the cluster down, also after an interrupt. The logs are kept if a folder is given.
func (t *Testbed) Down(ctx context.Context, keepLogs string) error {
	args := []string{"down", "--name", t.Name}
	if keepLogs != "" {
		args = append(args, "--keep-logs", keepLogs)
	}
	return t.follow(context.WithoutCancel(ctx), t.program, args...)
}

// Kubectl speaks to the cluster.
func (t *Testbed) Kubectl(ctx context.Context) (Kubectl, error) {
	dir, err := Output(ctx, t.top, "", t.program, "assets", "--print-path")
	if err != nil {
		return Kubectl{}, err
	}
	return Kubectl{program: filepath.Join(strings.TrimSpace(dir), "kubectl"), kubeconfig: t.Kubeconfig()}, nil
}

// Images builds all images and puts them on the nodes.
func (t *Testbed) Images(ctx context.Context) error {
	return t.follow(ctx, "make", "--no-print-directory", "images", "CLUSTER="+t.Name)
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

// Install installs the operator from config/default, and waits until it is ready.
func (t *Testbed) Install(ctx context.Context, k Kubectl) error {
	base, err := relative(t.scratch, filepath.Join(t.top, "config/default"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.scratch, "kustomization.yaml"), fmt.Appendf(nil, overlay, base), 0o600); err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	if err := k.Run(ctx, "apply", "--server-side", "-k", t.scratch); err != nil {
		return err
	}
	return k.Run(ctx, "-n", "sluice-system", "rollout", "status", "deployment/sluice-operator", "--timeout=3m")
}

// relative is the way from one folder to another. Kustomize takes no absolute paths.
func relative(from, to string) (string, error) {
	to, err := filepath.Abs(to)
	if err == nil {
		to, err = filepath.Rel(from, to)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", to, err)
	}
	return to, nil
}

// Uninstall removes all that Install brought.
func (t *Testbed) Uninstall(ctx context.Context, k Kubectl) error {
	return k.Run(ctx, "delete", "--wait", "--timeout=2m", "-k", t.scratch)
}

func (t *Testbed) follow(ctx context.Context, name string, args ...string) error {
	return Follow(ctx, t.top, t.show, name, args...)
}
