package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Name is namespace/name, as the push contract names policies and stores.
func Name(namespace, name string) string { return namespace + "/" + name }

// Policy compiles a policy. It fills in defaults and validates on a copy; the error lists everything that is wrong.
// Version and store are left empty: Assemble fills in the one, the caller the other.
func Policy(original *v1alpha1.RateLimitPolicy) (*pushv1.Policy, error) {
	p := original.DeepCopy()
	Default(p)
	if errs := Validate(p); len(errs) > 0 {
		return nil, fmt.Errorf("policy %s: %w", Name(p.Namespace, p.Name), errs.ToAggregate())
	}
	s := &p.Spec
	out := &pushv1.Policy{
		Namespace: p.Namespace, Name: p.Name, Generation: p.Generation,
		Mode: modes[s.Mode], OnStoreFailure: failures[s.OnStoreFailure],
		Identity: identity(s.Identity),
	}
	for _, t := range s.Tiers {
		out.Tiers = append(out.Tiers, &pushv1.Tier{Name: t.Name, When: t.When})
	}
	for i := range s.Rules {
		out.Rules = append(out.Rules, rule(s, &s.Rules[i]))
	}
	return out, nil
}

var modes = map[v1alpha1.Mode]pushv1.Policy_Mode{
	v1alpha1.ModeCentral: pushv1.Policy_MODE_CENTRAL,
	v1alpha1.ModeHybrid:  pushv1.Policy_MODE_HYBRID,
	v1alpha1.ModeLocal:   pushv1.Policy_MODE_LOCAL,
}

var failures = map[v1alpha1.FailurePolicy]pushv1.Policy_OnStoreFailure{
	v1alpha1.OnStoreFailureLocal: pushv1.Policy_ON_STORE_FAILURE_LOCAL,
	v1alpha1.OnStoreFailureAllow: pushv1.Policy_ON_STORE_FAILURE_ALLOW,
	v1alpha1.OnStoreFailureDeny:  pushv1.Policy_ON_STORE_FAILURE_DENY,
}

var algorithms = map[v1alpha1.Algorithm]pushv1.Rule_Algorithm{
	v1alpha1.AlgorithmTokenBucket:          pushv1.Rule_ALGORITHM_TOKEN_BUCKET,
	v1alpha1.AlgorithmLeakyBucket:          pushv1.Rule_ALGORITHM_LEAKY_BUCKET,
	v1alpha1.AlgorithmFixedWindow:          pushv1.Rule_ALGORITHM_FIXED_WINDOW,
	v1alpha1.AlgorithmSlidingWindowLog:     pushv1.Rule_ALGORITHM_SLIDING_WINDOW_LOG,
	v1alpha1.AlgorithmSlidingWindowCounter: pushv1.Rule_ALGORITHM_SLIDING_WINDOW_COUNTER,
}

var missingKeys = map[v1alpha1.MissingKey]pushv1.Rule_MissingKey{
	"":                          pushv1.Rule_MISSING_KEY_CLIENT_IP,
	v1alpha1.MissingKeyClientIP: pushv1.Rule_MISSING_KEY_CLIENT_IP,
	v1alpha1.MissingKeySkip:     pushv1.Rule_MISSING_KEY_SKIP,
	v1alpha1.MissingKeyReject:   pushv1.Rule_MISSING_KEY_REJECT,
}

var matchTypes = map[string]pushv1.Match_Type{
	string(v1alpha1.PathMatchExact):             pushv1.Match_TYPE_EXACT,
	string(v1alpha1.PathMatchPathPrefix):        pushv1.Match_TYPE_PREFIX,
	string(v1alpha1.PathMatchRegularExpression): pushv1.Match_TYPE_REGULAR_EXPRESSION,
}

func identity(id *v1alpha1.Identity) *pushv1.Identity {
	out := &pushv1.Identity{Ipv4PrefixLength: 32, Ipv6PrefixLength: 64}
	if id == nil {
		return out
	}
	out.RejectInvalidCredential = id.OnInvalidCredential == v1alpha1.InvalidCredentialReject
	if c := id.ClientIP; c != nil {
		out.Ipv4PrefixLength, out.Ipv6PrefixLength = uint32(*c.IPv4PrefixLength), uint32(*c.IPv6PrefixLength) //nolint:gosec // validated
		for _, cidr := range c.TrustedProxies {
			out.TrustedProxies = append(out.TrustedProxies, netip.MustParsePrefix(cidr).Masked().String())
		}
	}
	for i := range id.JWT {
		j := &id.JWT[i]
		out.Jwt = append(out.Jwt, &pushv1.Identity_JWT{
			Issuer: j.Issuer, Audiences: j.Audiences, From: source(j.From), IdClaim: j.IDClaim, JwksUri: j.JWKS.URI,
		})
	}
	if id.APIKeys != nil {
		out.ApiKeys = &pushv1.Identity_APIKeySource{From: source(id.APIKeys.From)}
	}
	if h := id.TrustedHeaders; h != nil {
		claims := make(map[string]string, len(h.Claims))
		for claim, header := range h.Claims {
			claims[claim] = strings.ToLower(string(header))
		}
		out.TrustedHeaders = &pushv1.Identity_TrustedHeaders{Id: strings.ToLower(h.ID), Claims: claims}
	}
	return out
}

func source(s *v1alpha1.CredentialSource) *pushv1.Identity_CredentialSource {
	out := &pushv1.Identity_CredentialSource{Header: strings.ToLower(s.Header)}
	if s.Prefix != nil {
		out.Prefix = *s.Prefix
	}
	return out
}

func rule(s *v1alpha1.RateLimitPolicySpec, r *v1alpha1.Rule) *pushv1.Rule {
	out := &pushv1.Rule{
		Name: r.Name, When: r.When, Algorithm: algorithms[r.Algorithm],
		MissingKey: missingKeys[r.MissingKey], Limits: tierLimits(s, r),
		CountRejected: isTrue(r.CountRejected), Shadow: shadow(s.Enforcement, r.Enforcement),
		Response: response(s.Response, r.Response),
	}
	if n, constant := constantCost(r.Cost); !constant || n != 1 {
		out.Cost = r.Cost
	}
	if !isTrue(r.Shared) {
		out.Key = []string{"identity.key"}
		if len(r.Key) > 0 {
			out.Key = nil
			for _, k := range r.Key {
				out.Key = append(out.Key, string(k))
			}
		}
	}
	if r.Queue != nil {
		out.Queue = &pushv1.Queue{MaxLength: r.Queue.MaxLength, MaxWait: durationpb.New(duration(r.Queue.MaxWait))}
	}
	for i := range r.Match {
		out.Match = append(out.Match, match(&r.Match[i]))
	}
	return out
}

// shadow: the rule's own word counts; without one, the policy's.
func shadow(policy, rule v1alpha1.Enforcement) bool {
	if rule != "" {
		return rule == v1alpha1.EnforcementShadow
	}
	return policy == v1alpha1.EnforcementShadow
}

// tierLimits gives each tier its limits; those without a tier serve the tiers that have none of their own.
func tierLimits(s *v1alpha1.RateLimitPolicySpec, r *v1alpha1.Rule) []*pushv1.TierLimits {
	byTier := map[string][]*pushv1.Limit{}
	for _, l := range r.Limits {
		limit := &pushv1.Limit{Requests: *l.Requests, Window: durationpb.New(duration(l.Window))}
		if r.Algorithm == v1alpha1.AlgorithmTokenBucket {
			limit.Burst = *l.Requests
			if l.Burst != nil {
				limit.Burst = *l.Burst
			}
		}
		byTier[l.Tier] = append(byTier[l.Tier], limit)
	}
	var out []*pushv1.TierLimits
	for _, t := range s.Tiers {
		limits := byTier[t.Name]
		if len(limits) == 0 {
			limits = byTier[""]
		}
		if len(limits) > 0 {
			out = append(out, &pushv1.TierLimits{Tier: t.Name, Limits: limits})
		}
	}
	return out
}

func match(m *v1alpha1.Match) *pushv1.Match {
	out := &pushv1.Match{Method: m.Method}
	if m.Path != nil {
		out.Path = &pushv1.Match_StringMatch{Type: matchTypes[string(m.Path.Type)], Value: m.Path.Value}
	}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, named(strings.ToLower(h.Name), h.Type, h.Value))
	}
	for _, q := range m.QueryParams {
		out.QueryParams = append(out.QueryParams, named(q.Name, q.Type, q.Value))
	}
	return out
}

func named(name string, kind v1alpha1.ValueMatchType, value string) *pushv1.Match_NamedMatch {
	return &pushv1.Match_NamedMatch{Name: name, Value: &pushv1.Match_StringMatch{Type: matchTypes[string(kind)], Value: value}}
}

// response merges what the rule says over what the policy says, field by field, over the defaults.
func response(policy, rule *v1alpha1.Response) *pushv1.Response {
	headers := []v1alpha1.HeaderDialect{v1alpha1.HeadersRateLimit, v1alpha1.HeadersLegacy}
	out := &pushv1.Response{}
	for _, r := range []*v1alpha1.Response{policy, rule} {
		if r == nil {
			continue
		}
		if r.Headers != nil {
			headers = *r.Headers
		}
		if r.ResetFormat != "" {
			out.UnixReset = r.ResetFormat == v1alpha1.ResetUnixSeconds
		}
		if r.RetryAfterJitter != "" {
			out.RetryAfterJitter = durationpb.New(duration(r.RetryAfterJitter))
		}
		if r.Body != nil {
			out.BodyContentType, out.BodyExpression = r.Body.ContentType, r.Body.Expression
		}
	}
	out.RateLimit = slices.Contains(headers, v1alpha1.HeadersRateLimit)
	out.Legacy = slices.Contains(headers, v1alpha1.HeadersLegacy)
	out.XRateLimit = slices.Contains(headers, v1alpha1.HeadersXRateLimit)
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
