package rules

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/sluice-dev/sluice/internal/expression"
	"github.com/sluice-dev/sluice/limiter"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/identity"
)

// Plan is what one request must pass.
type Plan struct {
	// Applied has one entry for each rule that applies, in order; Checks goes with it.
	Applied []Applied
	Checks  []limiter.Check
	// Rejected is the rule that turns the request away because its key yields nothing; ShadowRejected would do so.
	Rejected       *Tier
	ShadowRejected []*Tier
	// Unauthorized is the policy that turns away the invalid credential.
	Unauthorized *Policy
}

// Applied is a rule that applies to a request, and what its body expression may see.
type Applied struct {
	*Tier
	Vars *expression.Vars
}

// Failed hears of expressions that could not be evaluated: field is tier, when, key or cost.
type Failed func(policy, rule, field string)

// Question narrows what is asked. The zero Question asks what the request may do, at no cost.
type Question struct {
	Multiply int64  // what the request's cost is multiplied with
	Policy   string // namespace/name; "" = all
	Rule     string // "" = all
}

// Plan tells what a request from peer must pass. It takes away headers that the peer must not set.
func (s *Set) Plan(r *http.Request, peer netip.Addr, q Question, failed Failed) Plan {
	var plan Plan
	facts := newFacts(r)
	policies := s.Policies
	if q.Policy != "" {
		policies = nil
		if p := s.Find(q.Policy); p != nil {
			policies = []*Policy{p}
		}
	}
	callers := make([]identity.Caller, len(policies))
	for i, p := range policies {
		callers[i] = p.identity.Resolve(peer, r.Header)
		if callers[i].Invalid && p.identity.RejectsInvalid() {
			plan.Unauthorized = p
			return plan
		}
	}
	s.headers.strip(r, peer)
	for i, p := range policies {
		p.plan(r, facts, callers[i], q, failed, &plan)
	}
	return plan
}

func (p *Policy) plan(r *http.Request, facts *facts, caller identity.Caller, q Question, failed Failed, plan *Plan) {
	vars := facts.vars(caller)
	name := p.tier(vars, failed)
	vars.Tier = name
	var found []*Rule
	p.index.find(facts.path, r, facts.query, func(rule *Rule) {
		if q.Rule == "" || rule.Name == q.Rule {
			found = append(found, rule)
		}
	})
	for _, rule := range sortRules(found) {
		t := rule.byTier[name]
		if t == nil || !rule.applies(vars, failed) {
			continue
		}
		key, ok := rule.key(vars, p, caller, failed)
		if !ok {
			if rule.missingKey == pushv1.Rule_MISSING_KEY_REJECT {
				plan.reject(t)
			}
			continue
		}
		plan.Applied = append(plan.Applied, Applied{t, vars})
		plan.Checks = append(plan.Checks, limiter.Check{Rule: t.Limit, Key: key, Cost: rule.costOf(vars, q.Multiply, failed)})
	}
}

func (plan *Plan) reject(t *Tier) {
	switch {
	case t.Limit.Shadow:
		plan.ShadowRejected = append(plan.ShadowRejected, t)
	case plan.Rejected == nil:
		plan.Rejected = t
	}
}

// tier is the first that matches; an expression that fails matches nobody. "" is no tier, and no limit.
func (p *Policy) tier(vars *expression.Vars, failed Failed) string {
	for _, t := range p.tiers {
		if t.when == nil {
			return t.name
		}
		matches, err := t.when.Bool(vars)
		if err != nil {
			failed(p.Name, "", "tier")
		}
		if matches && err == nil {
			return t.name
		}
	}
	return ""
}

// applies: a condition that fails applies, so that no mistake opens the door.
func (r *Rule) applies(vars *expression.Vars, failed Failed) bool {
	if r.when == nil {
		return true
	}
	applies, err := r.when.Bool(vars)
	if err != nil {
		failed(r.Policy.Name, r.Name, "when")
		return true
	}
	return applies
}

// key is what tells callers apart, as a keyed hash, since identities must not stand in the store.
func (r *Rule) key(vars *expression.Vars, p *Policy, caller identity.Caller, failed Failed) (string, bool) {
	if r.keys == nil {
		return "", true
	}
	mac := hmac.New(sha256.New, p.hashKey)
	var length [8]byte
	for _, k := range r.keys {
		part, err := k.String(vars)
		if err != nil {
			failed(r.Policy.Name, r.Name, "key")
		}
		if err != nil || part == "" {
			if r.missingKey != pushv1.Rule_MISSING_KEY_CLIENT_IP {
				return "", false
			}
			part = p.identity.AddressKey(caller.Address)
		}
		// Each part with its length, so that no two lists of parts look the same.
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), true
}

func (r *Rule) costOf(vars *expression.Vars, multiply int64, failed Failed) int64 {
	cost := int64(1)
	if r.cost != nil {
		n, err := r.cost.Int(vars)
		if err != nil || n < 0 {
			failed(r.Policy.Name, r.Name, "cost")
			n = 1
		}
		cost = min(n, math.MaxInt32)
	}
	return min(cost*multiply, math.MaxInt32)
}

// hashKey is the namespace's, or in the stand-alone form one that all who enforce the same policy agree on.
func hashKey(given []byte, policy string) []byte {
	if len(given) > 0 {
		return given
	}
	sum := sha256.Sum256([]byte("sluice stand-alone " + policy))
	return sum[:]
}

// facts is what expressions and matches see of a request, read once.
type facts struct {
	request *http.Request
	path    string
	headers expression.Strings
	params  expression.Strings
	values  map[string]string
}

func newFacts(r *http.Request) *facts {
	f := &facts{request: r, path: NormalizePath(r.URL.EscapedPath())}
	header := r.Header
	f.headers = expression.Strings{
		Get: func(name string) (string, bool) {
			lines, found := header[http.CanonicalHeaderKey(name)]
			return strings.Join(lines, ","), found
		},
		All: func() map[string]string {
			all := make(map[string]string, len(header))
			for name, lines := range header {
				all[strings.ToLower(name)] = strings.Join(lines, ",")
			}
			return all
		},
	}
	f.params = expression.Strings{
		Get: func(name string) (string, bool) {
			value, found := f.query()[name]
			return value, found
		},
		All: func() map[string]string { return maps.Clone(f.query()) },
	}
	return f
}

func (f *facts) query() map[string]string {
	if f.values == nil {
		f.values = parseQuery(f.request.URL.RawQuery)
	}
	return f.values
}

// parseQuery reads a query as browsers write it: the first parameter of a name counts, a semicolon is a character as any
// other, and what can't be decoded stays as it is, since the application gets it too.
func parseQuery(raw string) map[string]string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		if name = decodeQuery(name); !has(values, name) {
			values[name] = decodeQuery(value)
		}
	}
	return values
}

func has(values map[string]string, name string) bool {
	_, found := values[name]
	return found
}

func decodeQuery(s string) string {
	if decoded, err := url.QueryUnescape(s); err == nil {
		return decoded
	}
	return s
}

// hostOf is the host without port, in lower case, so that one host has one spelling.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (f *facts) vars(c identity.Caller) *expression.Vars {
	return &expression.Vars{
		Method: f.request.Method, Path: f.path, Host: hostOf(f.request.Host), Headers: f.headers, Query: f.params,
		Size: f.request.ContentLength, SourceAddress: c.Address.String(),
		Authenticated: c.Authenticated, Invalid: c.Invalid, ID: c.ID, Key: c.Key, Claims: c.Claims,
	}
}
