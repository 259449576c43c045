package main

import (
	"context"
	"path/filepath"
	"strings"
)

// kubeconfig is where the local cluster keeps its administrator's credentials.
const kubeconfig = "/var/lib/sluice-cluster/" + clusterName + "/kubeconfig"

// kubectl is a kubectl that speaks to the demo's cluster.
type kubectl struct{ program string }

func newKubectl(ctx context.Context, cluster string) (kubectl, error) {
	dir, err := output(ctx, cluster, "assets", "--print-path")
	if err != nil {
		return kubectl{}, err
	}
	return kubectl{program: filepath.Join(strings.TrimSpace(dir), "kubectl")}, nil
}

// kubectlError is what kubectl complained of.
type kubectlError struct{ command, said string }

func (e *kubectlError) Error() string { return "kubectl " + e.command + ": " + e.said }

// get returns what a command prints. Its error is a *kubectlError.
func (k kubectl) get(ctx context.Context, args ...string) (string, error) {
	out, err := output(ctx, k.program, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	if err != nil {
		said := err.Error()
		if _, after, found := strings.Cut(said, "exit status 1: "); found {
			said = after
		}
		return "", &kubectlError{command: strings.Join(args, " "), said: said}
	}
	return out, nil
}

func (k kubectl) run(ctx context.Context, args ...string) error {
	_, err := k.get(ctx, args...)
	return err
}

// explain shows what a stranger needs to find the cause of an error, and returns it.
func (k kubectl) explain(ctx context.Context, out *log, err error) error {
	ctx = context.WithoutCancel(ctx)
	out.line("it failed: %s", err)
	for _, args := range [][]string{
		{"get", "pods,rlp,rls", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector=type=Warning"},
		{"-n", "shop", "describe", "rlp,rls"},
		{"-n", "sluice-system", "logs", "deployment/sluice-operator", "--tail=40"},
		{"-n", "shop", "logs", "-l", "app=shop", "-c", "sluice-sidecar", "--tail=20"},
	} {
		out.line("kubectl %s", strings.Join(args, " "))
		said, failure := k.get(ctx, args...)
		if failure != nil {
			said = failure.Error()
		}
		out.block(said)
	}
	return err
}
