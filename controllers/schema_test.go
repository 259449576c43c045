package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
)

// tryOut asks the API server, which has no webhook here, to take an object without keeping it.
func tryOut(t *testing.T, kind, spec string) (*unstructured.Unstructured, error) {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("spec:\n"+spec), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetAPIVersion(v1alpha1.GroupVersion.String())
	o.SetKind(kind)
	o.SetNamespace("default")
	o.SetName("tried")
	return o, api.Create(t.Context(), o, client.DryRunAll)
}

func TestTheSchemaFillsInTheDefaultsThatTheCompilerKnows(t *testing.T) {
	t.Parallel()
	got, err := tryOut(t, "RateLimitPolicy", `
  identity: {clientIP: {trustedProxies: [10.0.0.1/32]}}
  rules:
  - name: api
    match: [{path: {value: /a}, headers: [{name: X-A, value: b}]}]
    limits: [{requests: 0, window: 1m}]
`)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(got.Object)
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.RateLimitPolicy{}
	if err := yaml.UnmarshalStrict(text, p); err != nil {
		t.Fatal(err)
	}
	s := &p.Spec
	if s.Mode != v1alpha1.ModeCentral || s.OnStoreFailure != v1alpha1.OnStoreFailureLocal || s.Enforcement != v1alpha1.EnforcementEnforce ||
		*s.Identity.ClientIP.IPv4PrefixLength != 32 || *s.Identity.ClientIP.IPv6PrefixLength != 64 ||
		s.Rules[0].Algorithm != v1alpha1.AlgorithmSlidingWindowCounter || *s.Rules[0].Limits[0].Requests != 0 {
		t.Errorf("got %s", text)
	}
	if errs := compile.Validate(p); len(errs) > 0 && len(s.Tiers) > 0 {
		t.Error(errs)
	}
}

func TestTheSchemaAloneRefuses(t *testing.T) {
	t.Parallel()
	const limits = "limits: [{requests: 1, window: 1m}]"
	cases := map[string]struct{ kind, spec, part string }{
		"selector with targetRefs":    {"RateLimitPolicy", "  targetRefs: [{group: apps, kind: Deployment, name: a}]\n  selector: {}\n  rules: [{name: a, " + limits + "}]", "spec"},
		"no rules":                    {"RateLimitPolicy", "  rules: []", "spec.rules"},
		"unknown mode":                {"RateLimitPolicy", "  mode: Global\n  rules: [{name: a, " + limits + "}]", "spec.mode"},
		"queue without LeakyBucket":   {"RateLimitPolicy", "  rules: [{name: a, queue: {maxLength: 1, maxWait: 1s}, " + limits + "}]", "queue is required"},
		"LeakyBucket without queue":   {"RateLimitPolicy", "  rules: [{name: a, algorithm: LeakyBucket, " + limits + "}]", "queue is required"},
		"LeakyBucket of two windows":  {"RateLimitPolicy", "  rules: [{name: a, algorithm: LeakyBucket, queue: {maxLength: 1, maxWait: 1s}, limits: [{requests: 1, window: 1m}, {requests: 1, window: 1h}]}]", "one limit for each tier"},
		"burst without TokenBucket":   {"RateLimitPolicy", "  rules: [{name: a, limits: [{requests: 1, window: 1m, burst: 2}]}]", "burst has a meaning only"},
		"countRejected of a bucket":   {"RateLimitPolicy", "  rules: [{name: a, algorithm: TokenBucket, countRejected: true, " + limits + "}]", "countRejected has a meaning only"},
		"shared with key":             {"RateLimitPolicy", "  rules: [{name: a, shared: true, key: [identity.key], " + limits + "}]", "shared excludes key"},
		"a log above its bound":       {"RateLimitPolicy", "  rules: [{name: a, algorithm: SlidingWindowLog, limits: [{requests: 1000001, window: 1m}]}]", "SlidingWindowCounter"},
		"negative requests":           {"RateLimitPolicy", "  rules: [{name: a, limits: [{requests: -1, window: 1m}]}]", "requests"},
		"window of another form":      {"RateLimitPolicy", "  rules: [{name: a, limits: [{requests: 1, window: 1d}]}]", "window"},
		"kind of another group":       {"RateLimitPolicy", "  targetRefs: [{group: batch, kind: Deployment, name: a}]\n  rules: [{name: a, " + limits + "}]", "spec.targetRefs[0]"},
		"keys over http":              {"RateLimitPolicy", "  identity: {jwt: [{issuer: a, jwks: {uri: 'http://a'}}]}\n  rules: [{name: a, " + limits + "}]", "jwks.uri"},
		"keys from two places":        {"RateLimitPolicy", "  identity: {jwt: [{issuer: a, jwks: {uri: 'https://a', configMapRef: {name: a, key: b}}}]}\n  rules: [{name: a, " + limits + "}]", "jwks"},
		"store of no kind":            {"RateLimitStore", "  timeout: 50ms", "spec"},
		"store of both kinds":         {"RateLimitStore", "  managed: {}\n  external: {addresses: ['a:1']}", "spec"},
		"Sentinel without masterName": {"RateLimitStore", "  external: {topology: Sentinel, addresses: ['a:1']}", "masterName"},
		"Standalone of two addresses": {"RateLimitStore", "  external: {addresses: ['a:1', 'b:1']}", "one address"},
		"address without a port":      {"RateLimitStore", "  external: {addresses: ['redis.cache.svc']}", "addresses[0]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tryOut(t, c.kind, c.spec)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.part) {
				t.Errorf("want Invalid with %q, got %v", c.part, err)
			}
		})
	}
}

// TestAPolicyAtEveryBoundIsTaken would fail if the rules of the schema cost more than the API server grants.
func TestAPolicyAtEveryBoundIsTaken(t *testing.T) {
	t.Parallel()
	p := policy("default", "full")
	s := &p.Spec
	for i := range 16 {
		s.TargetRefs = append(s.TargetRefs, v1alpha1.TargetRef{Group: new("apps"), Kind: "Deployment", Name: fmt.Sprint("shop-", i)})
		s.Tiers = append(s.Tiers, v1alpha1.Tier{Name: fmt.Sprint("tier-", i), When: fmt.Sprintf("identity.id == %q", strings.Repeat("a", 1000))})
	}
	s.Rules = nil
	for i := range 256 {
		r := v1alpha1.Rule{Name: fmt.Sprint("rule-", i), Algorithm: v1alpha1.AlgorithmLeakyBucket, Queue: &v1alpha1.Queue{MaxLength: 1, MaxWait: "1s"}}
		for j := range 16 {
			r.Limits = append(r.Limits, v1alpha1.Limit{Tier: fmt.Sprint("tier-", j), Requests: new(int64(1)), Window: "744h"})
			r.Match = append(r.Match, v1alpha1.Match{Path: &v1alpha1.PathMatch{Type: v1alpha1.PathMatchExact, Value: "/" + strings.Repeat("a", 100)}})
		}
		if i%2 == 0 {
			r.Algorithm, r.Queue = v1alpha1.AlgorithmTokenBucket, nil
			for j := range 16 {
				r.Limits = append(r.Limits, v1alpha1.Limit{Tier: fmt.Sprint("tier-", j), Requests: new(int64(1)), Window: "1h", Burst: new(int64(2))})
			}
		}
		s.Rules = append(s.Rules, r)
	}
	if err := api.Create(t.Context(), p, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	compile.Default(p)
	if errs := compile.Validate(p); len(errs) > 0 {
		t.Error(errs[:min(len(errs), 3)])
	}
	s.Rules = append(s.Rules, s.Rules[0])
	if err := api.Create(t.Context(), p, client.DryRunAll); !apierrors.IsInvalid(err) {
		t.Errorf("257 rules: %v", err)
	}
}
