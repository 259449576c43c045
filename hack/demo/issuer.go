package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
)

// Whose tokens the sample policy trusts, and for whom they are.
const (
	issuerURL = "https://id.example.com"
	audience  = "shop"
)

// issuer signs tokens as the identity provider of the sample policy would. Its key lives as long as the demo.
type issuer struct{ private, public jwk.Key }

func newIssuer() (*issuer, error) {
	raw, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	private, err := jwk.Import(raw)
	if err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	if err := private.Set(jwk.KeyIDKey, "demo"); err != nil {
		return nil, fmt.Errorf("name the signing key: %w", err)
	}
	if err := private.Set(jwk.AlgorithmKey, jwa.ES256()); err != nil {
		return nil, fmt.Errorf("name the signing algorithm: %w", err)
	}
	public, err := private.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("publish the signing key: %w", err)
	}
	return &issuer{private: private, public: public}, nil
}

// jwks is the key set that the policy's ConfigMap holds.
func (i *issuer) jwks() (string, error) {
	text, err := json.Marshal(map[string]any{"keys": []jwk.Key{i.public}})
	if err != nil {
		return "", fmt.Errorf("publish the signing key: %w", err)
	}
	return string(text), nil
}

// token is a signed token for a subject with a plan ("" for none), good for an hour from now.
func (i *issuer) token(subject, plan string, now time.Time) (string, error) {
	claims := map[string]any{
		"iss": issuerURL, "aud": audience, "sub": subject,
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	if plan != "" {
		claims["plan"] = plan
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	signed, err := jws.Sign(payload, jws.WithKey(jwa.ES256(), i.private))
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return string(signed), nil
}
