package compile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
)

// valid is a policy that every case below spoils in one place.
func valid() *v1alpha1.RateLimitPolicy {
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shop", Generation: 1}}
	p.Spec.Tiers = []v1alpha1.Tier{{Name: "premium", When: `identity.claims.plan == "premium"`}, {Name: "anonymous"}}
	p.Spec.Rules = []v1alpha1.Rule{{
		Name:   "api",
		Limits: []v1alpha1.Limit{{Tier: "premium", Requests: new(int64(100)), Window: "1m"}, {Tier: "anonymous", Requests: new(int64(10)), Window: "1m"}},
	}}
	compile.Default(p)
	return p
}

type spec = v1alpha1.RateLimitPolicySpec

// leaky makes the first rule a queue.
func leaky(s *spec) *v1alpha1.Rule {
	r := &s.Rules[0]
	r.Algorithm = v1alpha1.AlgorithmLeakyBucket
	r.Queue = &v1alpha1.Queue{MaxLength: 50, MaxWait: "2s"}
	return r
}

func identity(s *spec) *v1alpha1.Identity {
	s.Identity = &v1alpha1.Identity{}
	return s.Identity
}

func jwt(s *spec) *v1alpha1.JWT {
	id := identity(s)
	id.JWT = []v1alpha1.JWT{{Issuer: "https://id.example.com", JWKS: v1alpha1.JWKS{ConfigMapRef: &v1alpha1.KeyRef{Name: "keys", Key: "jwks"}}}}
	return &id.JWT[0]
}

func TestEveryRefusalNamesTheFieldTheValueAndTheWayOut(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		spoil func(*spec)
		field string
		value string // as the error shows it; "" where there is none to show
		way   string // part of the message
	}{
		"selector with targetRefs": {func(s *spec) {
			s.TargetRefs = []v1alpha1.TargetRef{{Kind: "Deployment", Name: "shop"}}
			s.Selector = &metav1.LabelSelector{}
		}, "spec.selector", "", "at most one"},
		"target of an unknown kind": {
			func(s *spec) { s.TargetRefs = []v1alpha1.TargetRef{{Kind: "Pod", Name: "shop"}} },
			"spec.targetRefs[0].kind", "Pod", "Deployment",
		},
		"target of another group": {
			func(s *spec) {
				s.TargetRefs = []v1alpha1.TargetRef{{Group: new("batch"), Kind: "Deployment", Name: "shop"}}
			},
			"spec.targetRefs[0].group", "batch", `of group "apps"`,
		},
		"target twice": {func(s *spec) {
			s.TargetRefs = []v1alpha1.TargetRef{{Kind: "Deployment", Name: "shop"}, {Kind: "Deployment", Name: "shop"}}
		}, "spec.targetRefs[1]", "Deployment/shop", ""},
		"too many targets": {func(s *spec) {
			for i := range 17 {
				s.TargetRefs = append(s.TargetRefs, v1alpha1.TargetRef{Kind: "Deployment", Name: fmt.Sprint("shop-", i)})
			}
		}, "spec.targetRefs", "17", "at most 16"},
		"selector that is none": {func(s *spec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}
		}, "spec.selector", "Is", "not a valid label selector operator"},
		"unknown mode":         {func(s *spec) { s.Mode = "Global" }, "spec.mode", "Global", "Hybrid"},
		"unknown failure mode": {func(s *spec) { s.OnStoreFailure = "Open" }, "spec.onStoreFailure", "Open", "Allow"},
		"unknown enforcement":  {func(s *spec) { s.Enforcement = "Off" }, "spec.enforcement", "Off", "Shadow"},
		"store without a name": {func(s *spec) { s.StoreRef = &v1alpha1.StoreRef{} }, "spec.storeRef.name", "", "name the RateLimitStore"},

		"trusted proxy that is no CIDR": {
			func(s *spec) { identity(s).ClientIP = &v1alpha1.ClientIP{TrustedProxies: []string{"10.0.42.7"}} },
			"spec.identity.clientIP.trustedProxies[0]", "10.0.42.7", "10.0.42.7/32",
		},
		"prefix too long": {
			func(s *spec) { identity(s).ClientIP = &v1alpha1.ClientIP{IPv4PrefixLength: new(int32(33))} },
			"spec.identity.clientIP.ipv4PrefixLength", "33", "1 to 32",
		},
		"trusted headers from nobody": {
			func(s *spec) { identity(s).TrustedHeaders = &v1alpha1.TrustedHeaders{ID: "X-Auth-User"} },
			"spec.identity.trustedHeaders", "X-Auth-User", "trustedProxies",
		},
		"token without an issuer": {func(s *spec) { jwt(s).Issuer = "" }, "spec.identity.jwt[0].issuer", "", "iss claim"},
		"keys from two places": {
			func(s *spec) { j := jwt(s); j.JWKS.SecretRef = j.JWKS.ConfigMapRef },
			"spec.identity.jwt[0].jwks", "", "exactly one of",
		},
		"keys over http": {
			func(s *spec) { jwt(s).JWKS = v1alpha1.JWKS{URI: "http://id.example.com/keys"} },
			"spec.identity.jwt[0].jwks.uri", "http://id.example.com/keys", "https",
		},
		"an issuer twice": {func(s *spec) {
			jwt(s)
			s.Identity.JWT = append(s.Identity.JWT, s.Identity.JWT[0])
		}, "spec.identity.jwt[1].issuer", "https://id.example.com", ""},
		"credential in a header of the connection": {
			func(s *spec) { jwt(s).From = &v1alpha1.CredentialSource{Header: "connection"} },
			"spec.identity.jwt[0].from.header", "connection", "choose another header",
		},
		"API keys of no Secrets": {
			func(s *spec) { identity(s).APIKeys = &v1alpha1.APIKeys{} },
			"spec.identity.apiKeys.secretSelector", "", "choose Secrets",
		},

		"tier after one that matches everyone": {
			func(s *spec) { s.Tiers = append(s.Tiers, v1alpha1.Tier{Name: "late", When: "true"}) },
			"spec.tiers[2].name", "late", "move it last",
		},
		"tier twice":        {func(s *spec) { s.Tiers[1].Name = "premium" }, "spec.tiers[1].name", "premium", ""},
		"tier that is text": {func(s *spec) { s.Tiers[0].When = `identity.id` }, "spec.tiers[0].when", "identity.id", "bool"},
		"unknown variable":  {func(s *spec) { s.Tiers[0].When = `client.id == ""` }, "spec.tiers[0].when", `client.id == ""`, "1:1"},
		"too many tiers": {func(s *spec) {
			s.Tiers = nil
			for i := range 17 {
				s.Tiers = append(s.Tiers, v1alpha1.Tier{Name: fmt.Sprint("t", i), When: "true"})
			}
		}, "spec.tiers", "17", "at most 16"},

		"no rules":   {func(s *spec) { s.Rules = nil }, "spec.rules", "", "at least one"},
		"rule twice": {func(s *spec) { s.Rules = append(s.Rules, s.Rules[0]) }, "spec.rules[1].name", "api", ""},
		"rule with a name that is none": {
			func(s *spec) { s.Rules[0].Name = "An API" }, "spec.rules[0].name", "An API", "lower case alphanumeric",
		},
		"unknown algorithm":  {func(s *spec) { s.Rules[0].Algorithm = "Leaky" }, "spec.rules[0].algorithm", "Leaky", "LeakyBucket"},
		"key that is number": {func(s *spec) { s.Rules[0].Key = []v1alpha1.Expression{"1"} }, "spec.rules[0].key[0]", "1", "string"},
		"key of a shared rule": {
			func(s *spec) {
				s.Rules[0].Shared, s.Rules[0].Key = new(true), []v1alpha1.Expression{"identity.key"}
			},
			"spec.rules[0].key", "", "remove one",
		},
		"missingKey of a shared rule": {
			func(s *spec) { s.Rules[0].Shared, s.Rules[0].MissingKey = new(true), v1alpha1.MissingKeySkip },
			"spec.rules[0].missingKey", "", "remove one",
		},
		"negative cost": {func(s *spec) { s.Rules[0].Cost = "-1" }, "spec.rules[0].cost", "-1", "0 to 2147483647"},
		"cost above the bound": {
			func(s *spec) { s.Rules[0].Cost = "2147483648" }, "spec.rules[0].cost", "2147483648", "0 to 2147483647",
		},
		"cost that is text":   {func(s *spec) { s.Rules[0].Cost = `"1"` }, "spec.rules[0].cost", `"1"`, "int"},
		"path without slash":  {func(s *spec) { matching(s).Path = &v1alpha1.PathMatch{Type: "Exact", Value: "api"} }, "spec.rules[0].match[0].path.value", "api", "start with /"},
		"path that is no RE2": {func(s *spec) { matching(s).Path = &v1alpha1.PathMatch{Type: "RegularExpression", Value: "("} }, "spec.rules[0].match[0].path.value", "(", "missing closing"},
		"unknown method":      {func(s *spec) { matching(s).Method = "FETCH" }, "spec.rules[0].match[0].method", "FETCH", "PATCH"},

		"countRejected of a bucket": {func(s *spec) {
			s.Rules[0].Algorithm, s.Rules[0].CountRejected = v1alpha1.AlgorithmTokenBucket, new(true)
		}, "spec.rules[0].countRejected", "", "FixedWindow"},
		"countRejected in mode Local": {
			func(s *spec) { s.Mode, s.Rules[0].CountRejected = v1alpha1.ModeLocal, new(true) },
			"spec.rules[0].countRejected", "", "Central",
		},
		"LeakyBucket without a queue": {func(s *spec) { leaky(s).Queue = nil }, "spec.rules[0].queue", "", "maxLength: 50"},
		"queue of another algorithm": {
			func(s *spec) { leaky(s).Algorithm = v1alpha1.AlgorithmFixedWindow }, "spec.rules[0].queue", "", "only with LeakyBucket",
		},
		"queue of nobody":      {func(s *spec) { leaky(s).Queue.MaxLength = 0 }, "spec.rules[0].queue.maxLength", "0", "1 to"},
		"wait that is no time": {func(s *spec) { leaky(s).Queue.MaxWait = "2 s" }, "spec.rules[0].queue.maxWait", "2 s", "500ms"},
		"LeakyBucket of two windows": {func(s *spec) {
			r := leaky(s)
			r.Limits = append(r.Limits, v1alpha1.Limit{Tier: "anonymous", Requests: new(int64(1)), Window: "1h"})
		}, "spec.rules[0].limits[2]", "anonymous", "remove the others"},

		"no limits": {func(s *spec) { s.Rules[0].Limits = nil }, "spec.rules[0].limits", "", "at least one"},
		"limit of an unknown tier": {
			func(s *spec) { s.Rules[0].Limits[0].Tier = "gold" }, "spec.rules[0].limits[0].tier", "gold", "premium",
		},
		"the same tier and window twice": {
			func(s *spec) { s.Rules[0].Limits[0].Tier, s.Rules[0].Limits[0].Window = "anonymous", "60s" },
			"spec.rules[0].limits[1].window", "1m", "",
		},
		"limit without requests": {
			func(s *spec) { s.Rules[0].Limits[0].Requests = nil }, "spec.rules[0].limits[0].requests", "", "how many",
		},
		"negative requests": {
			func(s *spec) { s.Rules[0].Limits[0].Requests = new(int64(-1)) }, "spec.rules[0].limits[0].requests", "-1", "0 to",
		},
		"a log above its bound": {func(s *spec) {
			s.Rules[0].Algorithm = v1alpha1.AlgorithmSlidingWindowLog
			s.Rules[0].Limits[0].Requests = new(int64(1_000_001))
		}, "spec.rules[0].limits[0].requests", "1000001", "SlidingWindowCounter"},
		"burst of another algorithm": {
			func(s *spec) { s.Rules[0].Limits[0].Burst = new(int64(5)) }, "spec.rules[0].limits[0].burst", "", "only with TokenBucket",
		},
		"burst of nothing": {func(s *spec) {
			s.Rules[0].Algorithm, s.Rules[0].Limits[0].Burst = v1alpha1.AlgorithmTokenBucket, new(int64(0))
		}, "spec.rules[0].limits[0].burst", "0", "1 to"},
		"window of no time":  {func(s *spec) { s.Rules[0].Limits[0].Window = "0s" }, "spec.rules[0].limits[0].window", "0s", "1ms to 744h"},
		"window of 32 days":  {func(s *spec) { s.Rules[0].Limits[0].Window = "768h" }, "spec.rules[0].limits[0].window", "768h", "1ms to 744h"},
		"window with a day":  {func(s *spec) { s.Rules[0].Limits[0].Window = "1d" }, "spec.rules[0].limits[0].window", "1d", "1h30m"},
		"window in parts":    {func(s *spec) { s.Rules[0].Limits[0].Window = "1.5s" }, "spec.rules[0].limits[0].window", "1.5s", "500ms"},
		"more than one a µs": {func(s *spec) { s.Rules[0].Limits[0].Requests, s.Rules[0].Limits[0].Window = new(int64(1001)), "1ms" }, "spec.rules[0].limits[0].window", "1ms", "lengthen the window"},

		"unknown header dialect": {
			func(s *spec) { s.Response = &v1alpha1.Response{Headers: &[]v1alpha1.HeaderDialect{"Retry"}} },
			"spec.response.headers[0]", "Retry", "RateLimit-Legacy",
		},
		"jitter that is no time": {
			func(s *spec) { s.Response = &v1alpha1.Response{RetryAfterJitter: "soon"} },
			"spec.response.retryAfterJitter", "soon", "500ms",
		},
		"body of no media type": {func(s *spec) {
			s.Rules[0].Response = &v1alpha1.Response{Body: &v1alpha1.Body{ContentType: "json", Expression: `{"a": 1}`}}
		}, "spec.rules[0].response.body.contentType", "json", "application/json"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := valid()
			c.spoil(&p.Spec)
			compile.Default(p)
			errs := compile.Validate(p)
			if !slices.ContainsFunc(errs, func(e *field.Error) bool {
				text := e.Error()
				return e.Field == c.field && strings.Contains(text, c.way) && strings.Contains(fmt.Sprint(e.BadValue)+text, c.value)
			}) {
				t.Errorf("want %s with %q and %q, got %v", c.field, c.value, c.way, errs)
			}
			if _, err := compile.Policy(p); err == nil {
				t.Error("it compiles all the same")
			}
		})
	}
}

func matching(s *spec) *v1alpha1.Match {
	s.Rules[0].Match = []v1alpha1.Match{{}}
	return &s.Rules[0].Match[0]
}

func TestAValidPolicyIsNotRefused(t *testing.T) {
	t.Parallel()
	if errs := compile.Validate(valid()); len(errs) > 0 {
		t.Error(errs)
	}
}
