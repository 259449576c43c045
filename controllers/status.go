package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// maxNamed is how many pods a message names.
const maxNamed = 5

// condition makes a condition; meta.SetStatusCondition keeps the time of the last transition.
func condition(kind string, isTrue bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if isTrue {
		status = metav1.ConditionTrue
	}
	const maxMessage = 32768
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message[:min(len(message), maxMessage)]}
}

// standing is how far one pod is with one policy.
type standing struct {
	programmed bool
	refused    bool
	missing    bool
	opaque     bool
	why        string
}

func standingOf(v *verdict, p *pod, s push.State) (standing, bool) {
	if !p.injected || !p.started {
		return standing{missing: true, why: "runs without a sidecar"}, p.asked && p.running && !p.injected
	}
	st := standing{opaque: s.Opaque > 0}
	refusal := refusalOf(s.Ack, compile.Name(v.policy.Namespace, v.policy.Name))
	switch {
	case refusal != "":
		st.refused, st.why = true, refusal
	case !s.Connected && s.Ack == nil:
		st.why = "its sidecar is not connected"
	case s.Ack.GetContentVersion() != p.wanted.GetContentVersion() && !s.Connected:
		st.why = "its sidecar is not connected and has not got the newest rules"
	case s.Ack.GetContentVersion() != p.wanted.GetContentVersion():
		st.why = "its sidecar has not acknowledged the newest rules"
	default:
		st.programmed = true
	}
	return st, true
}

// refusalOf tells why a sidecar did not take a policy; "" where it did.
func refusalOf(ack *pushv1.Ack, policy string) string {
	for _, r := range ack.GetResults() {
		if r.GetPolicy() == policy && r.GetError() != "" {
			return r.GetError()
		}
	}
	return ack.GetError()
}

// measure counts the policy's pods by what their sidecars acknowledged.
func (n *Namespaces) measure(v *verdict) (*v1alpha1.SidecarCounts, metav1.Condition) {
	var selected, programmed, pending, missing, opaque int32
	var behind []string
	refused := false
	for _, p := range v.pods {
		st, counts := standingOf(v, p, n.Pusher.State(p.UID))
		if !counts {
			continue
		}
		selected++
		switch {
		case st.programmed:
			programmed++
		case st.missing:
			missing++
		default:
			pending++
		}
		if st.opaque {
			opaque++
		}
		refused = refused || st.refused
		if !st.programmed {
			behind = append(behind, fmt.Sprintf("%s: %s", p.Name, st.why))
		}
	}
	counts := &v1alpha1.SidecarCounts{
		Selected: &selected, Programmed: &programmed, Pending: &pending, Missing: &missing, Opaque: &opaque,
		Summary: fmt.Sprintf("%d/%d", programmed, selected),
	}
	return counts, programmedCondition(v, counts, behind, refused)
}

func programmedCondition(v *verdict, c *v1alpha1.SidecarCounts, behind []string, refused bool) metav1.Condition {
	kind := v1alpha1.ConditionProgrammed
	switch {
	case v.compiled == nil:
		return condition(kind, false, v1alpha1.ReasonReconciling, "Nothing is enforced: see the other conditions")
	case *c.Selected == 0 && len(v.pods) > 0 && bare(v.pods):
		return condition(kind, false, v1alpha1.ReasonNotInjected,
			fmt.Sprintf("The policy selects %d pods, and none asks for a sidecar: annotate their workload with %s=%s",
				len(v.pods), v1alpha1.AnnotationInject, v1alpha1.InjectEnabled))
	case *c.Selected == 0:
		return condition(kind, true, v1alpha1.ReasonNoSidecars, "The policy selects no pods")
	case *c.Programmed == *c.Selected:
		return condition(kind, true, v1alpha1.ReasonProgrammed, c.Summary+" sidecars acknowledged the policy")
	case *c.Missing == *c.Selected:
		return condition(kind, false, v1alpha1.ReasonNotInjected, name(behind))
	case *c.Programmed > 0 || refused:
		return condition(kind, false, v1alpha1.ReasonPartiallyProgrammed, name(behind))
	default:
		return condition(kind, false, v1alpha1.ReasonReconciling, name(behind))
	}
}

func bare(pods []*pod) bool {
	for _, p := range pods {
		if p.asked || p.injected {
			return false
		}
	}
	return true
}

func name(behind []string) string {
	if len(behind) <= maxNamed {
		return strings.Join(behind, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(behind[:maxNamed], "; "), len(behind)-maxNamed)
}

// report writes the policy's status if it changed, and an event for each transition, once it is written.
func (n *Namespaces) report(ctx context.Context, _ *inputs, v *verdict) error {
	before := v.policy.DeepCopy()
	p := v.policy.DeepCopy()
	counts, programmed := n.measure(v)
	p.Status.Sidecars = counts
	p.Status.ObservedGeneration = p.Generation
	all := []metav1.Condition{v.accepted, programmed, v.storeOK, v.identity}
	for _, c := range append([]metav1.Condition{readyCondition(all)}, all...) {
		c.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&p.Status.Conditions, c)
	}
	if equality.Semantic.DeepEqual(before.Status, p.Status) {
		return nil
	}
	if err := n.Client.Status().Patch(ctx, p, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status of %s/%s: %w", p.Namespace, p.Name, err)
	}
	for _, c := range p.Status.Conditions {
		n.announce(before, p, c)
	}
	return nil
}

func (n *Namespaces) announce(before, p *v1alpha1.RateLimitPolicy, c metav1.Condition) {
	was := meta.FindStatusCondition(before.Status.Conditions, c.Type)
	if c.Type == v1alpha1.ConditionReady || was != nil && was.Status == c.Status && was.Reason == c.Reason {
		return
	}
	kind := corev1.EventTypeNormal
	if c.Status != metav1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	const maxNote = 1000
	n.Recorder.Eventf(p, nil, kind, c.Reason, c.Type, "%s", c.Message[:min(len(c.Message), maxNote)])
}

// readyCondition is true where all others are; else it takes the first other's reason.
func readyCondition(all []metav1.Condition) metav1.Condition {
	for _, c := range all {
		if c.Status != metav1.ConditionTrue {
			return condition(v1alpha1.ConditionReady, false, c.Reason, c.Type+": "+c.Message)
		}
	}
	return condition(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, "The policy is in force")
}
