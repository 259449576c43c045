package controllers

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// verdict is what was decided on one policy.
type verdict struct {
	policy   *v1alpha1.RateLimitPolicy // as it is now
	enforced *v1alpha1.RateLimitPolicy // as it is enforced: the last accepted
	judgement
	compiled *pushv1.Policy // nil where nothing can be enforced
	store    *pushv1.Store
	apiKeys  []*pushv1.APIKey
	keySets  []*pushv1.KeySet
	pods     []*pod

	accepted metav1.Condition
	storeOK  metav1.Condition
	identity metav1.Condition
}

// judge decides on one policy: is it valid, and is all there that it refers to?
func (n *Namespaces) judge(ctx context.Context, in *inputs, p *v1alpha1.RateLimitPolicy) (*verdict, error) {
	v := &verdict{policy: p, enforced: p}
	v.accepted = condition(v1alpha1.ConditionAccepted, true, v1alpha1.ReasonAccepted, "The policy is valid")
	v.storeOK = condition(v1alpha1.ConditionStoreReady, true, v1alpha1.ReasonNotNeeded, "Mode Local needs no store")
	v.identity = condition(v1alpha1.ConditionIdentityReady, true, v1alpha1.ReasonReady, "All keys are there")
	j, err := n.accept(ctx, p)
	if err != nil {
		return nil, err
	}
	v.judgement = j
	form := j.form
	if j.invalid != nil {
		message := j.invalid.Error()
		if form.policy != nil {
			message += fmt.Sprintf("; generation %d stays in force", form.policy.Generation)
		}
		v.accepted = condition(v1alpha1.ConditionAccepted, false, v1alpha1.ReasonInvalid, message)
	}
	if form.compiled == nil {
		return v, nil
	}
	v.enforced, v.compiled = form.policy, form.compiled
	if j.invalid == nil {
		if err := n.findTargets(ctx, v); err != nil {
			return nil, err
		}
	}
	if err := n.findStore(ctx, in, v); err != nil {
		return nil, err
	}
	n.findKeys(ctx, in, v)
	return v, nil
}

func (n *Namespaces) findTargets(ctx context.Context, v *verdict) error {
	for _, ref := range v.enforced.Spec.TargetRefs {
		object, known := targetOf(ref.Kind)
		if !known {
			continue
		}
		err := n.Client.Get(ctx, types.NamespacedName{Namespace: v.policy.Namespace, Name: ref.Name}, object)
		if apierrors.IsNotFound(err) {
			v.accepted = condition(v1alpha1.ConditionAccepted, false, v1alpha1.ReasonTargetNotFound,
				fmt.Sprintf("%s %s is not in namespace %s", ref.Kind, ref.Name, v.policy.Namespace))
			return nil
		}
		if err != nil {
			return fmt.Errorf("get target: %w", err)
		}
	}
	return nil
}

func targetOf(kind string) (client.Object, bool) {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}, true
	case "StatefulSet":
		return &appsv1.StatefulSet{}, true
	case "DaemonSet":
		return &appsv1.DaemonSet{}, true
	case "ReplicaSet":
		return &appsv1.ReplicaSet{}, true
	case "Job":
		return &batchv1.Job{}, true
	case "CronJob":
		return &batchv1.CronJob{}, true
	case "Service":
		return &corev1.Service{}, true
	default:
		return nil, false
	}
}

// findStore looks for the policy's store in its own namespace and then in the operator's.
func (n *Namespaces) findStore(ctx context.Context, in *inputs, v *verdict) error {
	if v.enforced.Spec.Mode == v1alpha1.ModeLocal {
		return nil
	}
	name := DefaultStore
	if ref := v.enforced.Spec.StoreRef; ref != nil {
		name = ref.Name
	}
	store, err := n.lookUpStore(ctx, in, name)
	if refused, is := errors.AsType[*storeError](err); is {
		v.accepted = condition(v1alpha1.ConditionAccepted, false, refused.reason, refused.Error())
		v.storeOK = condition(v1alpha1.ConditionStoreReady, false, refused.reason, refused.Error())
		v.compiled = nil
		return nil
	}
	if err != nil {
		return err
	}
	v.store, err = describeStore(ctx, n.Client, store)
	v.compiled = withStore(v.compiled, v.store.GetName())
	v.storeOK = storeCondition(store)
	if err != nil {
		// The policy stays in force: without credentials the store refuses, and onStoreFailure decides.
		v.storeOK = condition(v1alpha1.ConditionStoreReady, false, v1alpha1.ReasonSecretAbsent, err.Error())
	}
	return nil
}

func (n *Namespaces) findKeys(ctx context.Context, in *inputs, v *verdict) {
	id := v.enforced.Spec.Identity
	if id == nil || v.compiled == nil {
		return
	}
	var missing []error
	name := compile.Name(v.policy.Namespace, v.policy.Name)
	for i := range id.JWT {
		data, err := n.keySet(ctx, v.policy.Namespace, id.JWT[i].Issuer, &id.JWT[i].JWKS)
		var set *pushv1.KeySet
		if err == nil {
			set, err = compile.KeySet(name, id.JWT[i].Issuer, data)
		}
		if err != nil {
			missing = append(missing, fmt.Errorf("keys of %s: %w", id.JWT[i].Issuer, err))
			continue
		}
		v.keySets = append(v.keySets, set)
	}
	if id.APIKeys != nil {
		keys, err := apiKeys(in.secrets, id.APIKeys.SecretSelector)
		if err != nil {
			missing = append(missing, err)
		}
		v.apiKeys = keys
	}
	if err := errors.Join(missing...); err != nil {
		v.identity = condition(v1alpha1.ConditionIdentityReady, false, v1alpha1.ReasonKeysAbsent, err.Error())
	}
}

func (n *Namespaces) keySet(ctx context.Context, namespace, issuer string, j *v1alpha1.JWKS) ([]byte, error) {
	switch {
	case j.SecretRef != nil:
		var s corev1.Secret
		if err := n.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: j.SecretRef.Name}, &s); err != nil {
			return nil, fmt.Errorf("get Secret %s labelled %s=%s: %w", j.SecretRef.Name, v1alpha1.LabelUse, v1alpha1.UseJWKS, err)
		}
		if s.Labels[v1alpha1.LabelUse] != v1alpha1.UseJWKS {
			return nil, fmt.Errorf("%w: Secret %s labelled %s=%s", compile.ErrReference, j.SecretRef.Name, v1alpha1.LabelUse, v1alpha1.UseJWKS)
		}
		return s.Data[j.SecretRef.Key], nil
	case j.ConfigMapRef != nil:
		var m corev1.ConfigMap
		if err := n.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: j.ConfigMapRef.Name}, &m); err != nil {
			return nil, fmt.Errorf("get ConfigMap %s: %w", j.ConfigMapRef.Name, err)
		}
		return []byte(m.Data[j.ConfigMapRef.Key]), nil
	default:
		return n.KeySets.Get(j.URI, namespace, issuer) //nolint:contextcheck // the fetch outlives this pass
	}
}

// apiKeys reads the chosen Secrets; one that is wrong does not take the others' keys away.
func apiKeys(secrets []corev1.Secret, s *metav1.LabelSelector) ([]*pushv1.APIKey, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("secretSelector: %w", err)
	}
	var keys []*pushv1.APIKey
	var failed []error
	for i := range secrets {
		if !selector.Matches(labels.Set(secrets[i].Labels)) {
			continue
		}
		read, err := compile.APIKeys(&secrets[i])
		if err != nil {
			failed = append(failed, err)
			continue
		}
		keys = append(keys, read...)
	}
	return keys, errors.Join(failed...)
}
