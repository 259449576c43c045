// Package rules holds the compiled rules of a sidecar and turns a request into the checks that decide on it.
// It knows the push contract, expressions, identities and the limiter's vocabulary; it answers nobody.
package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/expression"
	"github.com/sluice-dev/sluice/limiter"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/identity"
)

// Set is what a sidecar enforces. It does not change.
type Set struct {
	Version  string
	Policies []*Policy

	headers headers
}

// Policy is one compiled policy.
type Policy struct {
	Name       string // namespace/name
	ShortName  string // name
	Version    string
	Generation int64
	Source     *pushv1.Policy

	identity *identity.Resolver
	tiers    []tier
	rules    []*Rule
	index    *index
	hashKey  []byte
}

type tier struct {
	name string
	when *expression.Program // nil = everyone
}

// Rule is one compiled rule.
type Rule struct {
	Policy   *Policy
	Name     string
	Response Response

	order      int
	when       *expression.Program
	keys       []*expression.Program // nil = shared
	cost       *expression.Program   // nil = 1
	missingKey pushv1.Rule_MissingKey
	byTier     map[string]*Tier
}

// Tier is a rule as it is for one tier.
type Tier struct {
	Rule  *Rule
	Name  string
	Limit *limiter.Rule
	// Items names each limit in answers: policy/rule, with the window where a tier has several.
	Items []string
}

// Response shapes the answers of a rule.
type Response struct {
	RateLimit, Legacy, XRateLimit bool
	UnixReset                     bool
	Jitter                        time.Duration
	ContentType                   string
	Body                          *expression.Program // nil = problem+json
}

// Builder compiles Updates.
type Builder struct {
	Env   *expression.Env
	Clock clock.Clock
	// Backend returns the store of a name, described among the secrets.
	Backend func(name string) (*limiter.Backend, error)
	// Refresh asks for an issuer's keys; it may be nil.
	Refresh func(policy, issuer, keyID string)
}

// Build compiles an Update. A policy that can't be compiled keeps the content it had in former, and its result says why.
// The error tells that the Update as a whole can't be read.
func (b *Builder) Build(u *pushv1.Update, former *Set) (*Set, []*pushv1.PolicyResult, error) {
	var rules pushv1.RuleSet
	var secrets pushv1.Secrets
	if err := proto.Unmarshal(u.GetRuleSet(), &rules); err != nil {
		return nil, nil, fmt.Errorf("read rules: %w", err)
	}
	if err := proto.Unmarshal(u.GetSecrets(), &secrets); err != nil {
		return nil, nil, fmt.Errorf("read secrets: %w", err)
	}
	set := &Set{Version: u.GetContentVersion()}
	var results []*pushv1.PolicyResult
	for _, p := range rules.GetPolicies() {
		result := &pushv1.PolicyResult{Policy: p.GetNamespace() + "/" + p.GetName(), Version: p.GetVersion()}
		compiled, err := b.policy(p, &secrets, share(u.GetShares(), result.GetPolicy()))
		if err != nil {
			result.Error = err.Error()
			compiled = b.former(former.Find(result.GetPolicy()), &secrets, share(u.GetShares(), result.GetPolicy()))
		}
		if compiled != nil {
			set.Policies = append(set.Policies, compiled)
		}
		results = append(results, result)
	}
	set.headers = newHeaders(set.Policies)
	return set, results, nil
}

// former is a policy with its former content and today's secrets, stores and shares, so that it does not hold on to
// a store that is gone.
func (b *Builder) former(p *Policy, secrets *pushv1.Secrets, sh limiter.Share) *Policy {
	if p == nil {
		return nil
	}
	if again, err := b.policy(p.Source, secrets, sh); err == nil {
		return again
	}
	return p
}

// Find returns the policy of a name; nil if there is none.
func (s *Set) Find(name string) *Policy {
	if s == nil {
		return nil
	}
	for _, p := range s.Policies {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func share(list []*pushv1.Share, policy string) limiter.Share {
	for _, s := range list {
		if s.GetPolicy() == policy {
			return limiter.Share{Rank: int(s.GetRank()), Of: int(s.GetOf())}
		}
	}
	return limiter.Share{}
}

func (b *Builder) policy(p *pushv1.Policy, secrets *pushv1.Secrets, sh limiter.Share) (*Policy, error) {
	out := &Policy{
		Name: p.GetNamespace() + "/" + p.GetName(), ShortName: p.GetName(),
		Version: p.GetVersion(), Generation: p.GetGeneration(), Source: p, index: newIndex(),
	}
	out.hashKey = hashKey(secrets.GetHashKey(), out.Name)
	resolver, err := b.resolver(p, out.Name, secrets)
	if err != nil {
		return nil, err
	}
	out.identity = resolver
	for _, t := range p.GetTiers() {
		when, err := b.optional(expression.Condition, t.GetWhen())
		if err != nil {
			return nil, fmt.Errorf("tier %s: when: %w", t.GetName(), err)
		}
		out.tiers = append(out.tiers, tier{t.GetName(), when})
	}
	backend, err := b.backend(p)
	if err != nil {
		return nil, err
	}
	for i, r := range p.GetRules() {
		rule, err := b.rule(out, r, backend, sh)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.GetName(), err)
		}
		rule.order = i
		out.rules = append(out.rules, rule)
		if err := out.index.add(rule, r.GetMatch()); err != nil {
			return nil, fmt.Errorf("rule %s: match: %w", r.GetName(), err)
		}
	}
	return out, nil
}

func (b *Builder) resolver(p *pushv1.Policy, name string, secrets *pushv1.Secrets) (*identity.Resolver, error) {
	var keys []*pushv1.APIKey
	for _, set := range secrets.GetApiKeys() {
		if set.GetPolicy() == name {
			keys = append(keys, set.GetKeys()...)
		}
	}
	sets := map[string][]byte{}
	for _, set := range secrets.GetKeySets() {
		if set.GetPolicy() == name {
			sets[set.GetIssuer()] = set.GetJwks()
		}
	}
	var refresh identity.Refresh
	if b.Refresh != nil {
		refresh = func(issuer, keyID string) { b.Refresh(name, issuer, keyID) }
	}
	return identity.NewResolver(p.GetIdentity(), keys, sets, b.Clock, refresh)
}

func (b *Builder) backend(p *pushv1.Policy) (*limiter.Backend, error) {
	if p.GetMode() == pushv1.Policy_MODE_LOCAL {
		return nil, nil //nolint:nilnil // no store is a mode of its own
	}
	backend, err := b.Backend(p.GetStore())
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", p.GetStore(), err)
	}
	return backend, nil
}

func (b *Builder) optional(kind expression.Kind, source string) (*expression.Program, error) {
	if source == "" {
		return nil, nil //nolint:nilnil // no expression means what its place says
	}
	return b.Env.Compile(kind, source)
}

func (b *Builder) rule(p *Policy, r *pushv1.Rule, backend *limiter.Backend, sh limiter.Share) (*Rule, error) {
	out := &Rule{Policy: p, Name: r.GetName(), missingKey: r.GetMissingKey(), byTier: map[string]*Tier{}}
	var err error
	if out.when, err = b.optional(expression.Condition, r.GetWhen()); err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}
	if out.cost, err = b.optional(expression.Cost, r.GetCost()); err != nil {
		return nil, fmt.Errorf("cost: %w", err)
	}
	for _, source := range r.GetKey() {
		key, err := b.Env.Compile(expression.Key, source)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		out.keys = append(out.keys, key)
	}
	if out.Response, err = b.response(r.GetResponse()); err != nil {
		return nil, fmt.Errorf("response: %w", err)
	}
	for _, t := range r.GetLimits() {
		tier, err := newTier(out, r, t, backend, sh)
		if err != nil {
			return nil, fmt.Errorf("tier %s: %w", t.GetTier(), err)
		}
		out.byTier[t.GetTier()] = tier
	}
	return out, nil
}

func (b *Builder) response(r *pushv1.Response) (Response, error) {
	body, err := b.optional(expression.Body, r.GetBodyExpression())
	if err != nil {
		return Response{}, fmt.Errorf("body: %w", err)
	}
	return Response{
		RateLimit: r.GetRateLimit(), Legacy: r.GetLegacy(), XRateLimit: r.GetXRateLimit(), UnixReset: r.GetUnixReset(),
		Jitter: r.GetRetryAfterJitter().AsDuration(), ContentType: r.GetBodyContentType(), Body: body,
	}, nil
}

var algorithms = map[pushv1.Rule_Algorithm]limiter.Algorithm{
	pushv1.Rule_ALGORITHM_TOKEN_BUCKET:           limiter.TokenBucket,
	pushv1.Rule_ALGORITHM_LEAKY_BUCKET:           limiter.LeakyBucket,
	pushv1.Rule_ALGORITHM_FIXED_WINDOW:           limiter.FixedWindow,
	pushv1.Rule_ALGORITHM_SLIDING_WINDOW_LOG:     limiter.SlidingWindowLog,
	pushv1.Rule_ALGORITHM_SLIDING_WINDOW_COUNTER: limiter.SlidingWindowCounter,
}

var modes = map[pushv1.Policy_Mode]limiter.Mode{
	pushv1.Policy_MODE_CENTRAL: limiter.Central,
	pushv1.Policy_MODE_HYBRID:  limiter.Hybrid,
	pushv1.Policy_MODE_LOCAL:   limiter.Local,
}

var failures = map[pushv1.Policy_OnStoreFailure]limiter.FailurePolicy{
	pushv1.Policy_ON_STORE_FAILURE_LOCAL: limiter.FailLocal,
	pushv1.Policy_ON_STORE_FAILURE_ALLOW: limiter.FailAllow,
	pushv1.Policy_ON_STORE_FAILURE_DENY:  limiter.FailDeny,
}

func newTier(rule *Rule, r *pushv1.Rule, t *pushv1.TierLimits, backend *limiter.Backend, sh limiter.Share) (*Tier, error) {
	source := rule.Policy.Source
	limit := &limiter.Rule{
		Scope: rule.Policy.Name + "/" + rule.Name + "/" + t.GetTier(), Namespace: source.GetNamespace(),
		Algorithm: algorithms[r.GetAlgorithm()], CountRejected: r.GetCountRejected(), Shadow: r.GetShadow(),
		Queue: limiter.Queue{MaxLength: r.GetQueue().GetMaxLength(), MaxWait: r.GetQueue().GetMaxWait().AsDuration()},
		Mode:  modes[source.GetMode()], OnFailure: failures[source.GetOnStoreFailure()], Backend: backend,
	}
	out := &Tier{Rule: rule, Name: t.GetTier(), Limit: limit}
	for _, l := range t.GetLimits() {
		window := l.GetWindow().AsDuration()
		limit.Limits = append(limit.Limits, limiter.Limit{Requests: l.GetRequests(), Window: window, Burst: l.GetBurst()})
		item := rule.Policy.ShortName + "/" + rule.Name
		if len(t.GetLimits()) > 1 {
			item += "/" + FormatWindow(window)
		}
		out.Items = append(out.Items, item)
	}
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	limit.Local = limit.ForShare(sh)
	return out, nil
}

// FormatWindow writes a window as a policy would: 1h30m, 500ms.
func FormatWindow(d time.Duration) string {
	var text strings.Builder
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := int64(d / unit.length); n > 0 {
			fmt.Fprintf(&text, "%d%s", n, unit.name)
			d %= unit.length
		}
	}
	return text.String()
}

func sortRules(list []*Rule) []*Rule {
	slices.SortFunc(list, func(a, b *Rule) int { return cmp.Compare(a.order, b.order) })
	return slices.Compact(list)
}
