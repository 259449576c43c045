package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrAllowedNamespaces tells that a value of allowedNamespaces has none of its three forms.
var ErrAllowedNamespaces = errors.New(`must be "Same", "All", or an object with selector`)

// MarshalJSON writes a string for a named set, else an object.
func (a AllowedNamespaces) MarshalJSON() ([]byte, error) {
	if a.Selector != nil {
		return json.Marshal(struct {
			Selector *metav1.LabelSelector `json:"selector"`
		}{a.Selector})
	}
	return json.Marshal(string(a.From))
}

// UnmarshalJSON reads either form.
func (a *AllowedNamespaces) UnmarshalJSON(data []byte) error {
	var name NamespacesFrom
	if err := json.Unmarshal(data, &name); err == nil {
		*a = AllowedNamespaces{From: name}
		return nil
	}
	var object struct {
		Selector *metav1.LabelSelector `json:"selector"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return fmt.Errorf("allowedNamespaces: %w", err)
	}
	if object.Selector == nil {
		return fmt.Errorf("allowedNamespaces: %w", ErrAllowedNamespaces)
	}
	*a = AllowedNamespaces{Selector: object.Selector}
	return nil
}
