package compile

import (
	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// DefaultTier is the one tier of a policy that names none.
const DefaultTier = "anonymous"

// Default fills in what the schema's defaults and the absence of a field mean, in place. It changes nothing the second time.
func Default(p *v1alpha1.RateLimitPolicy) {
	s := &p.Spec
	or(&s.Mode, v1alpha1.ModeCentral)
	or(&s.OnStoreFailure, v1alpha1.OnStoreFailureLocal)
	or(&s.Enforcement, v1alpha1.EnforcementEnforce)
	if s.Identity != nil {
		defaultIdentity(s.Identity)
	}
	if len(s.Tiers) == 0 {
		s.Tiers = []v1alpha1.Tier{{Name: DefaultTier}}
	}
	for i := range s.Rules {
		defaultRule(&s.Rules[i])
	}
	defaultResponse(s.Response)
}

func defaultIdentity(id *v1alpha1.Identity) {
	or(&id.OnInvalidCredential, v1alpha1.InvalidCredentialAnonymous)
	if id.ClientIP != nil {
		orNew(&id.ClientIP.IPv4PrefixLength, 32)
		orNew(&id.ClientIP.IPv6PrefixLength, 64)
	}
	for i := range id.JWT {
		j := &id.JWT[i]
		or(&j.IDClaim, "sub")
		orNew(&j.From, v1alpha1.CredentialSource{Header: "Authorization", Prefix: new("Bearer ")})
	}
	if id.APIKeys != nil {
		orNew(&id.APIKeys.From, v1alpha1.CredentialSource{Header: "X-API-Key"})
	}
}

func defaultRule(r *v1alpha1.Rule) {
	or(&r.Algorithm, v1alpha1.AlgorithmSlidingWindowCounter)
	or(&r.Cost, "1")
	for i := range r.Match {
		m := &r.Match[i]
		if m.Path != nil {
			or(&m.Path.Type, v1alpha1.PathMatchPathPrefix)
			or(&m.Path.Value, "/")
		}
		for j := range m.Headers {
			or(&m.Headers[j].Type, v1alpha1.ValueMatchExact)
		}
		for j := range m.QueryParams {
			or(&m.QueryParams[j].Type, v1alpha1.ValueMatchExact)
		}
	}
	defaultResponse(r.Response)
}

func defaultResponse(r *v1alpha1.Response) {
	if r != nil && r.Body != nil {
		or(&r.Body.ContentType, "application/json")
	}
}

func or[T comparable](field *T, value T) {
	var none T
	if *field == none {
		*field = value
	}
}

func orNew[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
