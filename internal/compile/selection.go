package compile

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// PodFacts is what the choice of policies for a pod depends on.
type PodFacts struct {
	Namespace string
	Labels    map[string]string
	Owners    []Owner  // the whole chain: ReplicaSet and Deployment, Job and CronJob
	Services  []string // the names of the Services that select the pod
}

// Owner is a workload that a pod belongs to.
type Owner struct{ Kind, Name string }

// Selects tells whether a policy's targetRefs or selector choose a pod; without either, they choose every pod of the namespace.
func Selects(p *v1alpha1.RateLimitPolicy, pod PodFacts) bool {
	if p.Namespace != pod.Namespace {
		return false
	}
	if s := p.Spec.Selector; s != nil {
		selector, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && selector.Matches(labels.Set(pod.Labels))
	}
	if len(p.Spec.TargetRefs) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Spec.TargetRefs, func(ref v1alpha1.TargetRef) bool {
		if ref.Kind == "Service" {
			return slices.Contains(pod.Services, ref.Name)
		}
		return slices.Contains(pod.Owners, Owner{Kind: ref.Kind, Name: ref.Name})
	})
}

// Applicable returns the policies that apply to a pod: those that select it, or, if none does, the default ones that do.
func Applicable(policies []*v1alpha1.RateLimitPolicy, pod PodFacts) []*v1alpha1.RateLimitPolicy {
	var own, defaults []*v1alpha1.RateLimitPolicy
	for _, p := range policies {
		switch {
		case !Selects(p, pod):
		case isTrue(p.Spec.Default):
			defaults = append(defaults, p)
		default:
			own = append(own, p)
		}
	}
	if len(own) > 0 {
		return own
	}
	return defaults
}
