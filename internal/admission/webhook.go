package admission

import (
	"context"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
)

// Paths of the webhooks on the manager's webhook server.
const (
	PathPolicies = "/validate-policies"
	PathStores   = "/validate-stores"
)

// Setup registers the validating webhooks of both kinds.
func Setup(mgr ctrl.Manager) {
	server := mgr.GetWebhookServer()
	server.Register(PathPolicies, admission.WithValidator(mgr.GetScheme(), &validator[*v1alpha1.RateLimitPolicy]{
		kind:  "RateLimitPolicy",
		spec:  func(policy *v1alpha1.RateLimitPolicy) any { return policy.Spec },
		check: checkPolicy,
	}))
	server.Register(PathStores, admission.WithValidator(mgr.GetScheme(), &validator[*v1alpha1.RateLimitStore]{
		kind: "RateLimitStore",
		spec: func(store *v1alpha1.RateLimitStore) any { return store.Spec },
		check: func(store *v1alpha1.RateLimitStore) ([]string, field.ErrorList) {
			return StoreWarnings(store), ValidateStore(store)
		},
	}))
}

func checkPolicy(policy *v1alpha1.RateLimitPolicy) ([]string, field.ErrorList) {
	policy = policy.DeepCopy()
	compile.Default(policy)
	errs := compile.Validate(policy)
	if len(errs) > 0 {
		return nil, errs
	}
	return compile.Warnings(policy), nil
}

// validator refuses an object by its spec.
type validator[T client.Object] struct {
	kind  string
	spec  func(T) any
	check func(T) (warnings []string, errs field.ErrorList)
}

// ValidateCreate implements admission.Validator.
func (v *validator[T]) ValidateCreate(_ context.Context, object T) (admission.Warnings, error) {
	warnings, errs := v.check(object)
	if len(errs) > 0 {
		return warnings, apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(v.kind).GroupKind(), object.GetName(), errs)
	}
	return warnings, nil
}

// ValidateUpdate implements admission.Validator. An object whose spec stays is let through, so that one that was
// stored before a check existed can still be labelled, finalized and deleted.
func (v *validator[T]) ValidateUpdate(ctx context.Context, before, object T) (admission.Warnings, error) {
	if object.GetDeletionTimestamp() != nil || reflect.DeepEqual(v.spec(before), v.spec(object)) {
		return nil, nil
	}
	return v.ValidateCreate(ctx, object)
}

// ValidateDelete implements admission.Validator; nothing keeps an object from being deleted.
func (v *validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) {
	return nil, nil
}
