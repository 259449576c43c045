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
	// Set moves the store's clock to a time, in microseconds since the epoch.
	Set func(now int64)
	// Reset forgets all counters.
	Reset func()
}

// Run runs the suite. A harness is made for each part; now is where its clock stands at first.
func Run(t *testing.T, newHarness func(t *testing.T, now int64) Harness) {
	t.Helper()
	for name, a := range map[string]limiter.Algorithm{
		"TokenBucket": limiter.TokenBucket, "LeakyBucket": limiter.LeakyBucket, "FixedWindow": limiter.FixedWindow,
		"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, epoch)
			rapid.Check(t, func(rt *rapid.T) { schedule(rt, h, a) })
		})
	}
	t.Run("boundary", func(t *testing.T) {
		t.Parallel()
		testBoundary(t, newHarness)
	})
	t.Run("shadow", func(t *testing.T) {
		t.Parallel()
		testShadow(t, newHarness(t, epoch))
	})
	t.Run("all or nothing", func(t *testing.T) {
		t.Parallel()
		testAllOrNothing(t, newHarness(t, epoch))
	})
}

// epoch is a Tuesday noon, in microseconds.
const epoch = int64(1_796_126_400_000_000)

// schedule is one property: whatever is asked and edited in whatever order, store and model say the same.
func schedule(rt *rapid.T, h Harness, a limiter.Algorithm) {
	h.Reset()
	now := epoch + rapid.Int64Range(0, 1e9).Draw(rt, "start")
	rule := drawRule(rt, a)
	counters := make([]*model.Counter, len(rule.Limits))
	for i := range counters {
		counters[i] = model.New(a)
		counters[i].Edit(now, rule.Limits[i], rule.Queue)
	}
	for step := range rapid.IntRange(1, 25).Draw(rt, "steps") {
		now += drawPause(rt, rule)
		h.Set(now)
		if step > 0 && rapid.IntRange(0, 9).Draw(rt, "edit") == 0 {
			rule = edited(rt, rule)
		}
		cost := rapid.SampledFrom([]int64{1, 1, 1, 1, 0, 2, 3, 7, 60}).Draw(rt, "cost")
		check := limiter.Check{Rule: rule, Key: "k", Cost: cost}
		got, err := h.Store.Decide(context.Background(), []limiter.Check{check})
		if err != nil {
			rt.Fatalf("decide: %v", err)
		}
		want := expect(counters, rule, now, cost)
		if g, w := fmt.Sprintf("%+v", got[0]), fmt.Sprintf("%+v", want); g != w {
			rt.Fatalf("step %d, cost %d, %+v\n got %s\nwant %s", step, cost, *rule, g, w)
		}
	}
}

func drawRule(rt *rapid.T, a limiter.Algorithm) *limiter.Rule {
	r := &limiter.Rule{Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Central}
	windows := 1
	if a != limiter.LeakyBucket {
		windows = rapid.IntRange(1, 2).Draw(rt, "windows")
	}
	for i := range windows {
		unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, 7 * 24 * time.Hour}).Draw(rt, "unit")
		if a == limiter.SlidingWindowLog {
			unit = min(unit, time.Minute) // longer windows have coarser ticks, which the model does not know
		}
		r.Limits = append(r.Limits, limiter.Limit{Window: unit * time.Duration(1+2*i+rapid.IntRange(0, 1).Draw(rt, "n"))})
	}
	if a == limiter.LeakyBucket {
		r.Queue = limiter.Queue{
			MaxLength: rapid.Int64Range(1, 20).Draw(rt, "queue"),
			MaxWait:   time.Duration(rapid.Int64Range(1, 4000).Draw(rt, "wait")) * time.Millisecond,
		}
	}
	if a != limiter.TokenBucket && a != limiter.LeakyBucket {
		r.CountRejected = rapid.Bool().Draw(rt, "countRejected")
	}
	return edited(rt, r)
}

// edited is the same rule with other numbers.
func edited(rt *rapid.T, r *limiter.Rule) *limiter.Rule {
	n := *r
	n.Limits = make([]limiter.Limit, len(r.Limits))
	for i, l := range r.Limits {
		l.Requests = rapid.SampledFrom([]int64{0, 1, 2, 3, 7, 10, 50, 999}).Draw(rt, "requests")
		l.Burst = 0
		if r.Algorithm == limiter.TokenBucket && l.Requests > 0 {
			l.Burst = rapid.SampledFrom([]int64{0, 1, 5, 13, 1000}).Draw(rt, "burst")
		}
		n.Limits[i] = l
	}
	return &n
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

// expect is the decision as the model has it.
func expect(counters []*model.Counter, r *limiter.Rule, now, cost int64) limiter.Result {
	asked := max(1, cost)
	want := limiter.Result{Allowed: true, Source: limiter.FromStore}
	fits := make([]bool, len(counters))
	for i, c := range counters {
		c.Edit(now, r.Limits[i], r.Queue)
		fits[i] = c.Fits(now, asked)
		want.Allowed = want.Allowed && fits[i]
	}
	for i, c := range counters {
		if r.Algorithm == limiter.LeakyBucket && want.Allowed && cost > 0 {
			want.Delay = time.Duration(c.Reset(now)) * time.Microsecond
		}
		charged := want.Allowed || (r.CountRejected && asked <= r.Limits[i].Capacity())
		if charged && cost > 0 {
			c.Add(now, cost)
		}
		want.Limits = append(want.Limits, stateOf(c, r, i, now, asked, fits[i]))
		if !want.Allowed {
			want.RetryAfter = max(want.RetryAfter, want.Limits[i].RetryAfter)
		}
	}
	return want
}

func stateOf(c *model.Counter, r *limiter.Rule, i int, now, asked int64, fits bool) limiter.State {
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
	if !fits {
		s.RetryAfter = limiter.Never
		if d, ok := c.Retry(now, asked); ok {
			s.RetryAfter = d
		}
	}
	return s
}
