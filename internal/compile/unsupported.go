package compile

import "k8s.io/apimachinery/pkg/util/validation/field"

// unsupportedKeys refuses key sets that would have to be fetched: the contract has them, and they must not be ignored silently.
func (v *validator) unsupportedKeys(jwks *field.Path, uri string) {
	if uri != "" {
		v.add(field.Forbidden(jwks.Child("uri"), "is not supported yet: put the key set into a ConfigMap or Secret and name it in configMapRef or secretRef"))
	}
}
