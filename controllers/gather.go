package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	"github.com/sluice-dev/sluice/internal/inject"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// inputs is all that a pass over a namespace looks at.
type inputs struct {
	namespace *corev1.Namespace
	policies  []v1alpha1.RateLimitPolicy // sorted by name
	pods      []pod                      // sorted by UID
	secrets   []corev1.Secret
	hashKey   []byte
}

// pod is a live pod.
type pod struct {
	*corev1.Pod
	facts    compile.PodFacts
	injected bool // it has the sidecar
	started  bool // the sidecar's container started
	asked    bool // it asked for the sidecar
	running  bool
	verdicts []*verdict
	wanted   *pushv1.Update
}

func (n *Namespaces) gather(ctx context.Context, name string) (*inputs, error) {
	in := &inputs{namespace: &corev1.Namespace{}}
	if err := n.Client.Get(ctx, types.NamespacedName{Name: name}, in.namespace); err != nil {
		return nil, err
	}
	var policies v1alpha1.RateLimitPolicyList
	if err := n.Client.List(ctx, &policies, client.InNamespace(name)); err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	in.policies = policies.Items
	slices.SortFunc(in.policies, func(a, b v1alpha1.RateLimitPolicy) int { return cmp.Compare(a.Name, b.Name) })
	var secrets corev1.SecretList
	if err := n.Client.List(ctx, &secrets, client.InNamespace(name), client.MatchingLabels{v1alpha1.LabelUse: v1alpha1.UseAPIKeys}); err != nil {
		return nil, fmt.Errorf("list API-key Secrets: %w", err)
	}
	in.secrets = secrets.Items
	slices.SortFunc(in.secrets, func(a, b corev1.Secret) int { return cmp.Compare(a.Name, b.Name) })
	return in, n.gatherPods(ctx, in)
}

func (n *Namespaces) gatherPods(ctx context.Context, in *inputs) error {
	var pods corev1.PodList
	if err := n.Client.List(ctx, &pods, client.InNamespace(in.namespace.Name)); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var services corev1.ServiceList
	if err := n.Client.List(ctx, &services, client.InNamespace(in.namespace.Name)); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		owners, err := n.owners(ctx, p)
		if err != nil {
			return err
		}
		in.pods = append(in.pods, describe(p, in.namespace, owners, services.Items))
	}
	slices.SortFunc(in.pods, func(a, b pod) int { return cmp.Compare(a.UID, b.UID) })
	return nil
}

func describe(p *corev1.Pod, namespace *corev1.Namespace, owners []compile.Owner, services []corev1.Service) pod {
	out := pod{Pod: p, asked: inject.Asked(p, namespace), running: p.Status.Phase == corev1.PodRunning}
	out.facts = compile.PodFacts{Namespace: p.Namespace, Labels: p.Labels, Owners: owners}
	for i := range services {
		selector := services[i].Spec.Selector
		if len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(p.Labels)) {
			out.facts.Services = append(out.facts.Services, services[i].Name)
		}
	}
	out.injected = slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == inject.SidecarName })
	for _, s := range p.Status.InitContainerStatuses {
		// One that crashed again and again started, too: it counts as pending.
		if s.Name == inject.SidecarName && (s.State.Running != nil || s.State.Terminated != nil || s.RestartCount > 0) {
			out.started = true
		}
	}
	return out
}

// owners follows the chain of controllers: ReplicaSet and Deployment, Job and CronJob.
func (n *Namespaces) owners(ctx context.Context, p *corev1.Pod) ([]compile.Owner, error) {
	first := metav1.GetControllerOf(p)
	if first == nil {
		return nil, nil
	}
	chain := []compile.Owner{{Kind: first.Kind, Name: first.Name}}
	var between client.Object
	switch first.Kind {
	case "ReplicaSet":
		between = &appsv1.ReplicaSet{}
	case "Job":
		between = &batchv1.Job{}
	default:
		return chain, nil
	}
	err := n.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: first.Name}, between)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get %s %s: %w", first.Kind, first.Name, err)
	}
	if second := metav1.GetControllerOf(between); err == nil && second != nil {
		chain = append(chain, compile.Owner{Kind: second.Kind, Name: second.Name})
	}
	return chain, nil
}

// assemble makes what one pod should enforce.
func (in *inputs) assemble(p *pod) (*pushv1.Update, error) {
	out := compile.Inputs{HashKey: in.hashKey, APIKeys: map[string][]*pushv1.APIKey{}, KeySets: map[string][]*pushv1.KeySet{}}
	stores := map[string]bool{}
	for _, v := range p.verdicts {
		name := compile.Name(v.policy.Namespace, v.policy.Name)
		out.Policies = append(out.Policies, v.compiled)
		out.APIKeys[name], out.KeySets[name] = v.apiKeys, v.keySets
		if v.store != nil && !stores[v.store.GetName()] {
			stores[v.store.GetName()] = true
			out.Stores = append(out.Stores, v.store)
		}
		out.Shares = append(out.Shares, v.shareOf(p))
	}
	return compile.Assemble(out)
}

// shareOf ranks the pod among the injected pods of the policy.
func (v *verdict) shareOf(p *pod) *pushv1.Share {
	share := &pushv1.Share{Policy: compile.Name(v.policy.Namespace, v.policy.Name)}
	for _, other := range v.pods {
		if !other.injected {
			continue
		}
		if other == p {
			share.Rank = share.GetOf()
		}
		share.Of++
	}
	return share
}
