// Package sidecar is the limiter in front of an application: it tells who is calling, asks the limiter, and passes
// the request on or answers it. It knows nothing of Kubernetes.
package sidecar

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/sidecar/answer"
	"github.com/sluice-dev/sluice/sidecar/identity"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

// maxHeaderLines is how many header lines a request may have.
const maxHeaderLines = 256

// Guard limits the requests to an upstream.
type Guard struct {
	engine  *limiter.Engine
	lines   *limiter.Lines
	metrics *Metrics
	clock   clock.Clock
	set     atomic.Pointer[rules.Set]
	// denyWithoutRules answers 503 while there are no rules.
	denyWithoutRules bool
}

// NewGuard returns a Guard without rules.
func NewGuard(e *limiter.Engine, m *Metrics, c clock.Clock, denyWithoutRules bool) *Guard {
	return &Guard{engine: e, lines: limiter.NewLines(e, c), metrics: m, clock: c, denyWithoutRules: denyWithoutRules}
}

// Rules are those in force; nil before the first.
func (g *Guard) Rules() *rules.Set { return g.set.Load() }

// Enforce puts rules in force for the requests that come from now on.
func (g *Guard) Enforce(set *rules.Set) {
	g.set.Store(set)
	g.metrics.generation.Reset()
	for _, p := range set.Policies {
		g.metrics.generation.WithLabelValues(p.Name).Set(float64(p.Generation))
	}
}

// Verdict is what becomes of a request.
type Verdict struct {
	// Refusal answers the request; nil lets it pass.
	Refusal *answer.Refusal
	// Fields go with the upstream's answer.
	Fields answer.Fields
	// Decided has one entry for each rule that applied.
	Decided []answer.Decided

	checks  []limiter.Check
	results []limiter.Result
}

// Decide decides a request without holding it. It takes trusted headers away where the request's peer must not set them.
// The error is the context's.
func (g *Guard) Decide(r *http.Request, q rules.Question) (*Verdict, error) {
	set := g.set.Load()
	if set == nil {
		if g.denyWithoutRules {
			return &Verdict{Refusal: answer.NoRules()}, nil
		}
		return &Verdict{}, nil
	}
	started := g.clock.Now()
	plan := set.Plan(r, identity.PeerAddress(r.RemoteAddr), q, g.metrics.expressionFailed)
	if plan.Unauthorized != nil {
		return &Verdict{Refusal: answer.Unauthorized(plan.Unauthorized)}, nil
	}
	for _, t := range plan.ShadowRejected {
		g.count(t, "shadow_rejected")
	}
	if plan.Rejected != nil {
		g.count(plan.Rejected, "rejected")
		return &Verdict{Refusal: answer.WithoutKey(plan.Rejected)}, nil
	}
	results, err := g.engine.Decide(r.Context(), plan.Checks)
	if err != nil {
		return nil, err
	}
	g.metrics.decided(g.clock.Now().Sub(started))
	return g.verdict(plan, results), nil
}

func (g *Guard) verdict(plan rules.Plan, results []limiter.Result) *Verdict {
	v := &Verdict{Decided: make([]answer.Decided, len(results)), checks: plan.Checks, results: results}
	rejected, failed := false, false
	for i, result := range results {
		d := answer.Decided{Applied: plan.Applied[i], Result: result}
		v.Decided[i] = d
		g.count(d.Tier, outcome(d))
		if !d.Allowed && !d.Limit.Shadow {
			failed = failed || d.Source == limiter.FailedDeny
			rejected = rejected || d.Source != limiter.FailedDeny
		}
	}
	v.Fields = answer.FieldsOf(v.Decided, g.clock.Now())
	switch {
	case rejected:
		v.Refusal = answer.Rejected(v.Decided, v.Fields)
		if r := v.Refusal.FailedBody; r != nil {
			g.metrics.expressionFailed(r.Policy.Name, r.Name, "body")
		}
	case failed:
		v.Refusal = answer.StoreFailed(v.Decided, v.Fields)
	}
	return v
}

func outcome(d answer.Decided) string {
	switch {
	case d.Source == limiter.FailedAllow:
		return "store_failure_allowed"
	case d.Source == limiter.FailedDeny:
		return "store_failure_denied"
	case !d.Allowed && d.Limit.Shadow:
		return "shadow_rejected"
	case !d.Allowed:
		return "rejected"
	case d.Delay > 0 && !d.Limit.Shadow:
		return "queued"
	default:
		return "allowed"
	}
}

func (g *Guard) count(t *rules.Tier, decision string) {
	g.metrics.requests.WithLabelValues(t.Rule.Policy.Name, t.Rule.Name, t.Name, decision).Inc()
}

// Wait holds a request that may pass until its departure; a caller that leaves makes room. The error is the context's.
func (g *Guard) Wait(ctx context.Context, v *Verdict) error {
	if !slices.ContainsFunc(v.Decided, func(d answer.Decided) bool { return d.Delay > 0 && !d.Limit.Shadow }) {
		return nil
	}
	g.metrics.queued.Inc()
	defer g.metrics.queued.Dec()
	return g.lines.Wait(ctx, v.checks, v.results)
}

// unproxied refuses what asks for another thing than a resource of the application.
func unproxied(r *http.Request) *answer.Refusal {
	if r.Method == http.MethodConnect {
		return answer.NotTaken()
	}
	if lines := countLines(r.Header); lines > maxHeaderLines {
		return answer.TooManyHeaders(lines, maxHeaderLines)
	}
	if r.URL.Opaque != "" {
		return answer.BadRequest("The request's target is not a path")
	}
	rules.EscapePath(r.URL)
	return nil
}

func countLines(h http.Header) int {
	n := 0
	for _, lines := range h {
		n += len(lines)
	}
	return n
}

// Handler guards next.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := unproxied(r); refusal != nil {
			refusal.Write(w, r)
			return
		}
		verdict, err := g.Decide(r, rules.Question{Multiply: 1})
		if err != nil {
			return // the caller left
		}
		if verdict.Refusal != nil {
			verdict.Refusal.Write(w, r)
			return
		}
		if err := g.Wait(r.Context(), verdict); err != nil {
			return // the caller left
		}
		next.ServeHTTP(w, r.WithContext(answer.WithFields(r.Context(), verdict.Fields)))
	})
}
