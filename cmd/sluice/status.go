package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// target says which cluster and namespace a command is about, in kubectl's terms.
type target struct {
	kubeconfig, context, namespace string
	all                            bool
}

func newStatus() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "status [NAME…]",
		Short: "Say which policies are enforced by every sidecar, and what keeps the others from it",
		RunE: func(cmd *cobra.Command, args []string) error {
			policies, err := t.policies(cmd.Context(), args)
			if err != nil {
				return err
			}
			return writeStatus(cmd.OutOrStdout(), policies)
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.kubeconfig, "kubeconfig", "", "`FILE` with the cluster's address; the default is kubectl's")
	f.StringVar(&t.context, "context", "", "`NAME` of a context in it")
	f.StringVarP(&t.namespace, "namespace", "n", "", "`NAMESPACE`; the default is the context's")
	f.BoolVarP(&t.all, "all-namespaces", "A", false, "look into all namespaces")
	return cmd
}

// policies asks the cluster. A name that does not exist is an error.
func (t *target) policies(ctx context.Context, names []string) ([]v1alpha1.RateLimitPolicy, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.kubeconfig
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: t.context})
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	namespace := t.namespace
	if namespace == "" && !t.all {
		if namespace, _, err = config.Namespace(); err != nil {
			return nil, fmt.Errorf("find the namespace: %w", err)
		}
	}
	if t.all {
		namespace = metav1.NamespaceAll
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("know the kinds: %w", err)
	}
	c, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	var list v1alpha1.RateLimitPolicyList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the policies: %w", err)
	}
	return named(list.Items, names)
}

// named keeps the policies of these names; no names keep all.
func named(policies []v1alpha1.RateLimitPolicy, names []string) ([]v1alpha1.RateLimitPolicy, error) {
	if len(names) == 0 {
		return policies, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(policies, func(p v1alpha1.RateLimitPolicy) bool { return p.Name == name }) {
			return nil, fmt.Errorf("there is no policy %q", name) //nolint:err113 // said to a person
		}
	}
	return slices.DeleteFunc(policies, func(p v1alpha1.RateLimitPolicy) bool { return !slices.Contains(names, p.Name) }), nil
}

// writeStatus shows a line for each policy. It fails with errShown if one is not ready.
func writeStatus(out io.Writer, policies []v1alpha1.RateLimitPolicy) error {
	if len(policies) == 0 {
		_, _ = fmt.Fprintln(out, "no policies")
		return nil
	}
	slices.SortFunc(policies, func(a, b v1alpha1.RateLimitPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var result error
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAMESPACE\tNAME\tREADY\tSIDECARS\tWHY NOT")
	for i := range policies {
		p := &policies[i]
		ready := readiness(p)
		if ready != string(metav1.ConditionTrue) {
			result = errShown
		}
		_, _ = fmt.Fprintln(w, strings.Join([]string{p.Namespace, p.Name, ready, sidecars(p), whyNot(p)}, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return result
}

// readiness is the Ready condition, or Unknown while it speaks of an older generation.
func readiness(p *v1alpha1.RateLimitPolicy) string {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.ObservedGeneration != p.Generation {
		return string(metav1.ConditionUnknown)
	}
	return string(c.Status)
}

func sidecars(p *v1alpha1.RateLimitPolicy) string {
	if p.Status.Sidecars == nil {
		return "-"
	}
	return p.Status.Sidecars.Summary
}

// whyNot is what the conditions that are not true say, but for Ready, which only sums them up.
func whyNot(p *v1alpha1.RateLimitPolicy) string {
	if len(p.Status.Conditions) == 0 {
		return "the operator has not looked at it; does it run?"
	}
	var reasons []string
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == v1alpha1.ConditionReady || c.Status == metav1.ConditionTrue:
		case c.ObservedGeneration != p.Generation:
			reasons = append(reasons, c.Type+": the operator has not looked at the last edit yet")
		default:
			reasons = append(reasons, fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message))
		}
	}
	if len(reasons) == 0 {
		return "-"
	}
	return strings.Join(reasons, "; ")
}
