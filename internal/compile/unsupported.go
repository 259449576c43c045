package compile

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// unsupported refuses what the contract has and the product does not do yet, so that nothing is ignored silently.
func (v *validator) unsupported(spec *field.Path) {
	if v.policy.Spec.Mode == v1alpha1.ModeHybrid {
		v.add(field.NotSupported(spec.Child("mode"), v1alpha1.ModeHybrid, []v1alpha1.Mode{v1alpha1.ModeCentral, v1alpha1.ModeLocal}))
	}
}

// unsupportedKeys refuses key sets that would have to be fetched.
func (v *validator) unsupportedKeys(jwks *field.Path, uri string) {
	if uri != "" {
		v.add(field.Forbidden(jwks.Child("uri"), "is not supported yet: put the key set into a ConfigMap or Secret and name it in configMapRef or secretRef"))
	}
}
