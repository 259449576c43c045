// Package storetest holds the one suite that every store must pass: it drives a store and the reference
// model with the same random schedules in virtual time and compares every field of every decision.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/model"
)

// Harness is a store whose time the suite sets.
type Harness struct {
	Store limiter.Store
	// Repeat decides a request for n callers at once, where the store can; nil asks for one after the other.
	Repeat func(checks []limiter.Check, n int) ([][]limiter.Result, error)
	// Remembers tells that the store repeats refusals: then the rest of a decision may be older than its retry-after.
	Remembers bool
	// Set moves the store's clock to a time, in microseconds since the epoch.
	Set func(now int64)
	// Settle waits until what was given back is; nil if it is at once.
	Settle func()
	// Reset forgets all counters.
	Reset func()
}

var algorithms = map[string]limiter.Algorithm{
	"TokenBucket": limiter.TokenBucket, "LeakyBucket": limiter.LeakyBucket, "FixedWindow": limiter.FixedWindow,
	"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
}

// Run runs the suite. A harness is made for each part; now is where its clock stands at first.
func Run(t *testing.T, newHarness func(t *testing.T, now int64) Harness) {
	t.Helper()
	RunSchedules(t, newHarness)
	for name, a := range algorithms {
		t.Run(name+" takes charges back", func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, epoch)
			testGiveBack(t, h, a)
			rapid.Check(t, func(rt *rapid.T) { givingBack(rt, h, a) })
		})
	}
	t.Run("100 a minute admits 100 of those in second 59 and second 61", func(t *testing.T) {
		t.Parallel()
		testBoundary(t, newHarness)
	})
	t.Run("an exhausted shadow rule withholds nothing", func(t *testing.T) {
		t.Parallel()
		testShadow(t, newHarness(t, epoch))
	})
	t.Run("what one rule refuses costs nothing in another", func(t *testing.T) {
		t.Parallel()
		testAllOrNothing(t, newHarness(t, epoch))
	})
}

// RunSchedules runs the comparison with the models alone.
func RunSchedules(t *testing.T, newHarness func(t *testing.T, now int64) Harness) {
	t.Helper()
	for name, a := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, epoch)
			rapid.Check(t, func(rt *rapid.T) { schedule(rt, h, a) })
		})
	}
}

// latest is a century after the epoch. Later times can't be told from an earlier one by a time.Duration.
const latest = epoch + 100*365*24*3600*1_000_000

// epoch is a Tuesday noon, in microseconds.
const epoch = int64(1_796_126_400_000_000)

// side is one rule of a schedule and what the model has counted for it.
type side struct {
	rule     *limiter.Rule
	counters []*model.Counter
}

// plan is one schedule on its way.
type plan struct {
	h     Harness
	now   int64
	sides []*side
}

// schedule is one property: whatever is asked and edited in whatever order, store and model say the same, and a caller
// that is refused is told exactly how long to wait.
func schedule(rt *rapid.T, h Harness, a limiter.Algorithm) {
	h.Reset()
	p := &plan{h: h, now: epoch + rapid.Int64Range(0, 1e9).Draw(rt, "start")}
	for i := range rapid.SampledFrom([]int{1, 1, 2}).Draw(rt, "rules") {
		s := &side{rule: drawRule(rt, a, !h.Remembers)}
		s.rule.Scope = fmt.Sprintf("ns/p/r%d/t", i)
		s.rule.Shadow = i > 0 && rapid.Bool().Draw(rt, "shadow")
		for range s.rule.Limits {
			s.counters = append(s.counters, model.New(a))
		}
		p.sides = append(p.sides, s)
	}
	for range rapid.IntRange(1, 25).Draw(rt, "steps") {
		p.now += drawPause(rt, p.sides[0].rule)
		for _, s := range p.sides {
			if rapid.IntRange(0, 9).Draw(rt, "edit") == 0 {
				s.rule = edited(rt, s.rule)
			}
		}
		checks := p.checks(rt)
		results := p.ask(rt, checks, rapid.SampledFrom([]int{1, 1, 1, 1, 2, 3, 8}).Draw(rt, "callers"))
		if wait, known := refusal(checks, results); known && rapid.Bool().Draw(rt, "wait") && p.now+wait.Microseconds() < latest {
			p.await(rt, checks, wait)
		}
	}
}

func (p *plan) checks(rt *rapid.T) []limiter.Check {
	checks := make([]limiter.Check, len(p.sides))
	for i, s := range p.sides {
		checks[i] = limiter.Check{Rule: s.rule, Key: "k", Cost: drawCost(rt, s.rule)}
	}
	return checks
}

// ask puts a request of some callers to the store and to the model, and returns what the last of them is told.
func (p *plan) ask(rt *rapid.T, checks []limiter.Check, callers int) []limiter.Result {
	p.h.Set(p.now)
	all, err := p.h.decide(checks, callers)
	if err != nil {
		rt.Fatalf("decide: %v", err)
	}
	for n, got := range all {
		for i, want := range p.expect(checks) {
			if g, w := p.h.shown(got[i]), p.h.shown(want); g != w {
				rt.Fatalf("caller %d of %d, rule %d, cost %d, %+v\n got %s\nwant %s",
					n+1, callers, i, checks[i].Cost, *checks[i].Rule, g, w)
			}
		}
	}
	return all[len(all)-1]
}

// shown is what of a decision is compared.
func (h Harness) shown(r limiter.Result) string {
	if h.Remembers {
		return fmt.Sprintf("allowed %t, retry after %s", r.Allowed, r.RetryAfter)
	}
	return fmt.Sprintf("%+v", r)
}

func (h Harness) decide(checks []limiter.Check, callers int) ([][]limiter.Result, error) {
	if h.Repeat != nil {
		return h.Repeat(checks, callers)
	}
	var all [][]limiter.Result
	for range callers {
		r, err := h.Store.Decide(context.Background(), checks)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// refusal is how long a refused request has to wait; false if it was not refused, or as good as for ever.
func refusal(checks []limiter.Check, results []limiter.Result) (time.Duration, bool) {
	var wait time.Duration
	for i, r := range results {
		if !checks[i].Rule.Shadow && !r.Allowed {
			wait = max(wait, r.RetryAfter)
		}
	}
	const lifetime = 100 * 365 * 24 * time.Hour // longer waits are not told exactly
	return wait, wait > 0 && wait < lifetime
}

// await asks again one tick early, where that counts nothing, and then in time.
func (p *plan) await(rt *rapid.T, checks []limiter.Check, wait time.Duration) {
	asked := p.now
	early := true
	for _, c := range checks {
		early = early && !c.Rule.CountRejected && !c.Rule.Shadow
	}
	if early {
		p.now = asked + wait.Microseconds() - 1
		if _, refused := refusal(checks, p.ask(rt, checks, 1)); !refused {
			rt.Fatalf("admitted 1µs before retry-after %s had passed", wait)
		}
	}
	p.now = asked + wait.Microseconds()
	if again, refused := refusal(checks, p.ask(rt, checks, 1)); refused {
		rt.Fatalf("refused after retry-after %s, for another %s", wait, again)
	}
}

func drawRule(rt *rapid.T, a limiter.Algorithm, mayCount bool) *limiter.Rule {
	r := &limiter.Rule{Namespace: "ns", Algorithm: a, Mode: limiter.Central}
	windows := 1
	if a != limiter.LeakyBucket {
		windows = rapid.IntRange(1, 3).Draw(rt, "windows")
	}
	unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, 7 * 24 * time.Hour}).Draw(rt, "unit")
	for i := range windows {
		r.Limits = append(r.Limits, limiter.Limit{Window: unit * time.Duration(1+i)})
	}
	if a == limiter.LeakyBucket {
		r.Queue = limiter.Queue{
			MaxLength: rapid.Int64Range(1, 20).Draw(rt, "queue"),
			MaxWait:   time.Duration(rapid.Int64Range(1, 4000).Draw(rt, "wait")) * time.Millisecond,
		}
	}
	if mayCount && a != limiter.TokenBucket && a != limiter.LeakyBucket {
		r.CountRejected = rapid.Bool().Draw(rt, "countRejected")
	}
	return edited(rt, r)
}

// edited is the same rule with other numbers.
func edited(rt *rapid.T, r *limiter.Rule) *limiter.Rule {
	n := *r
	n.Limits = make([]limiter.Limit, len(r.Limits))
	for i, l := range r.Limits {
		l.Requests, l.Burst = rapid.OneOf(
			rapid.SampledFrom([]int64{0, 1, 2, 3, 7, 10, 50, 999}),
			rapid.Int64Range(1, largest(r.Algorithm, l.Window)),
		).Draw(rt, "requests"), 0
		if r.Algorithm == limiter.TokenBucket && l.Requests > 0 {
			l.Burst = rapid.OneOf(
				rapid.SampledFrom([]int64{0, 1, 5, 13, 1000}),
				rapid.Int64Range(1, min(limiter.MaxRequests, l.Requests*1000)),
			).Draw(rt, "burst")
		}
		n.Limits[i] = l
	}
	if err := n.Validate(); err != nil {
		rt.Fatalf("drew an invalid rule: %v", err)
	}
	return &n
}

// largest is the most requests of a window; of a log, the most that is quick to test.
func largest(a limiter.Algorithm, window time.Duration) int64 {
	if a == limiter.SlidingWindowLog {
		return 1000
	}
	return min(limiter.MaxRequests, window.Microseconds())
}

func drawCost(rt *rapid.T, r *limiter.Rule) int64 {
	if r.Algorithm == limiter.LeakyBucket {
		return rapid.SampledFrom([]int64{1, 1, 1, 1, 1, 1, 0, 0, 2, 2, 5, limiter.MaxCost}).Draw(rt, "cost")
	}
	capacity := r.Limits[0].Capacity()
	return rapid.OneOf(
		rapid.SampledFrom([]int64{1, 1, 1, 1, 0, 2, 3, 7, 60}),
		rapid.SampledFrom([]int64{capacity, capacity/2 + 1, capacity/3 + 1, min(capacity+1, limiter.MaxCost)}),
	).Draw(rt, "cost")
}

func drawPause(rt *rapid.T, r *limiter.Rule) int64 {
	window := r.Limits[0].Window.Microseconds()
	return rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(0, 3),
		rapid.Int64Range(0, window/10),
		rapid.Int64Range(0, 3*window),
	).Draw(rt, "pause")
}

// expect is the decision as the model has it: a request is charged where every rule that is not a shadow admits it.
func (p *plan) expect(checks []limiter.Check) []limiter.Result {
	results := make([]limiter.Result, len(checks))
	fits := make([][]bool, len(checks))
	admitted := true
	for i, s := range p.sides {
		results[i] = limiter.Result{Allowed: true, Source: limiter.FromStore, At: p.now}
		for j, c := range s.counters {
			c.Edit(p.now, s.rule.Limits[j], s.rule.Queue)
			fits[i] = append(fits[i], c.Fits(p.now, max(1, checks[i].Cost)))
			results[i].Allowed = results[i].Allowed && fits[i][j]
		}
		admitted = admitted && (results[i].Allowed || s.rule.Shadow)
	}
	for i, s := range p.sides {
		s.settle(&results[i], p.now, checks[i].Cost, fits[i], admitted)
	}
	return results
}

func (s *side) settle(r *limiter.Result, now, cost int64, fits []bool, admitted bool) {
	asked := max(1, cost)
	for j, c := range s.counters {
		limit := s.rule.Limits[j]
		if s.rule.Algorithm == limiter.LeakyBucket && r.Allowed && cost > 0 {
			r.Delay = time.Duration(c.Reset(now)) * time.Microsecond
		}
		if cost > 0 && s.charges(limit, cost, r.Allowed, admitted) {
			c.Add(now, cost)
		}
		r.Limits = append(r.Limits, stateOf(c, s.rule, j, now, asked, fits[j], r.Allowed))
		if !r.Allowed {
			r.RetryAfter = max(r.RetryAfter, r.Limits[j].RetryAfter)
		}
	}
}

// charges: a request that can never be admitted is not counted as an attempt.
func (s *side) charges(l limiter.Limit, cost int64, allowed, admitted bool) bool {
	if allowed {
		return admitted || s.rule.Shadow
	}
	return s.rule.CountRejected && cost <= l.Capacity()
}

func stateOf(c *model.Counter, r *limiter.Rule, i int, now, asked int64, fits, allowed bool) limiter.State {
	l := r.Limits[i]
	s := limiter.State{Allowed: fits, Limit: l.Requests, Current: c.Count(now)}
	switch {
	case l.Requests == 0 && (r.Algorithm == limiter.TokenBucket || r.Algorithm == limiter.LeakyBucket):
	case r.Algorithm == limiter.LeakyBucket:
		s.Remaining = max(0, r.Queue.MaxLength+1-s.Current)
		s.ResetAfter = time.Duration(c.Reset(now)) * time.Microsecond
	default:
		s.Remaining = max(0, l.Capacity()-s.Current)
		s.ResetAfter = time.Duration(c.Reset(now)) * time.Microsecond
	}
	if !allowed {
		s.RetryAfter = limiter.Never
		if d, ok := c.Retry(now, asked); ok {
			s.RetryAfter = d
		}
	}
	return s
}
