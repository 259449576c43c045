package compile

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// MaxKeySet bounds a JSON Web Key Set, in bytes.
const MaxKeySet = 1 << 20

// Errors of the objects that a policy refers to.
var (
	ErrKeySet    = errors.New("not a JSON Web Key Set")
	ErrAPIKeys   = errors.New("invalid API-key Secret")
	ErrReference = errors.New("not found")
)

// APIKeys reads a Secret's API keys: each entry is one, without the line break that editors leave at its end.
func APIKeys(s *corev1.Secret) ([]*pushv1.APIKey, error) {
	id := s.Annotations[v1alpha1.AnnotationID]
	if id == "" {
		id = s.Name
	}
	var claims map[string]string
	if text := s.Annotations[v1alpha1.AnnotationClaims]; text != "" {
		if err := json.Unmarshal([]byte(text), &claims); err != nil {
			return nil, fmt.Errorf("%w %s: annotation %s must be a JSON object of strings: %w",
				ErrAPIKeys, Name(s.Namespace, s.Name), v1alpha1.AnnotationClaims, err)
		}
	}
	var keys []*pushv1.APIKey
	for _, entry := range sortedKeys(s.Data) {
		key := bytes.TrimRight(s.Data[entry], "\r\n")
		if len(key) == 0 {
			return nil, fmt.Errorf("%w %s: entry %s is empty", ErrAPIKeys, Name(s.Namespace, s.Name), entry)
		}
		hash := sha256.Sum256(key)
		keys = append(keys, &pushv1.APIKey{Hash: hash[:], Id: id, Claims: claims})
	}
	return keys, nil
}

// KeySet checks that data looks like a JSON Web Key Set (RFC 7517) of a sane size.
func KeySet(policy, issuer string, data []byte) (*pushv1.KeySet, error) {
	if len(data) > MaxKeySet {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrKeySet, MaxKeySet)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeySet, err)
	}
	if set.Keys == nil {
		return nil, fmt.Errorf(`%w: no "keys"`, ErrKeySet)
	}
	return &pushv1.KeySet{Policy: policy, Issuer: issuer, Jwks: data}, nil
}
