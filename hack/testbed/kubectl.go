package testbed

import (
	"context"
	"strings"
)

// Kubectl is a kubectl that speaks to one cluster.
type Kubectl struct{ program, kubeconfig string }

// KubectlError is what kubectl complained of.
type KubectlError struct{ Command, Said string }

func (e *KubectlError) Error() string { return "kubectl " + e.Command + ": " + e.Said }

// Get returns what a command prints. Its error is a *KubectlError.
func (k Kubectl) Get(ctx context.Context, args ...string) (string, error) {
	return k.Feed(ctx, "", args...)
}

// Feed is Get with a text on standard input.
func (k Kubectl) Feed(ctx context.Context, stdin string, args ...string) (string, error) {
	out, err := Output(ctx, "", stdin, k.program, append([]string{"--kubeconfig", k.kubeconfig}, args...)...)
	if err != nil {
		said := err.Error()
		if _, after, found := strings.Cut(said, "exit status 1: "); found {
			said = after
		}
		return "", &KubectlError{Command: strings.Join(args, " "), Said: said}
	}
	return out, nil
}

// Run is Get for commands whose output does not matter.
func (k Kubectl) Run(ctx context.Context, args ...string) error {
	_, err := k.Get(ctx, args...)
	return err
}

// Diagnosis is what a stranger needs to find out why something in a namespace failed.
func (k Kubectl) Diagnosis(ctx context.Context, namespace string) string {
	var text strings.Builder
	for _, args := range [][]string{
		{"-n", namespace, "get", "pods,rlp,rls", "-o", "wide"},
		{"-n", namespace, "get", "events", "--sort-by=.lastTimestamp"},
		{"-n", namespace, "describe", "rlp,rls"},
		{"-n", "sluice-system", "logs", "deployment/sluice-operator", "--tail=40"},
		{"-n", namespace, "logs", "-l", "app", "-c", "sluice-sidecar", "--tail=20", "--prefix"},
	} {
		said, err := k.Get(ctx, args...)
		if err != nil {
			said = err.Error()
		}
		text.WriteString("$ kubectl " + strings.Join(args, " ") + "\n" + said + "\n")
	}
	return text.String()
}
