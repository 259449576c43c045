package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/internal/lease"
	"github.com/sluice-dev/sluice/limiter/memory"
)

// load is requests to eight members with clocks minutes apart, of which one gets four fifths.
type load struct {
	perSecond int64
	window    time.Duration
	factor    float64 // of the limit's rate is what comes
	windows   float64 // to run for
}

const members = 8

func loads() []load {
	list := []load{
		{10, time.Second, 1.5, 20.4}, {100, 10 * time.Second, 1.5, 3.4}, {1000, time.Second, 3, 3.4}, {10, time.Minute, 5, 4.4},
	}
	if !long {
		return list
	}
	for _, perSecond := range []int64{10, 100, 1000, 10_000} {
		for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour} {
			windows := 20.4
			if window == time.Hour {
				windows = 2.9
			}
			for _, factor := range []float64{.8, 1.5, 10} {
				list = append(list, load{perSecond, window, factor, windows})
			}
		}
	}
	return list
}

func (l load) requests() int64 { return int64(float64(l.perSecond) * l.window.Seconds()) }

// cost is that of each request: more than 1 where there would be too many.
func (l load) cost() int64 {
	return 1 + int64(float64(l.requests())*l.factor*l.windows/5e5)
}

// outcome is what came of a load: units used by the members, units that mode Central would have admitted of the same
// requests, and claims a second.
type outcome struct {
	used, central int64
	claims        float64
}

func (l load) run(w *world, r *limiter.Rule) outcome {
	w.reset(epoch)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range members {
		w.join(r, int64(i-3)*100_000_000, 0)
	}
	var o outcome
	central, cost := newReplay(r), l.cost()
	mean := 1e6 / (float64(l.perSecond) * l.factor) * float64(cost)
	end := epoch + int64(l.windows*float64(l.window.Microseconds()))
	var next func()
	next = func() {
		m := w.members[0]
		if random.Float64() >= .8 {
			m = w.members[1+random.IntN(members-1)]
		}
		if central.admits(use{w.now, cost}) {
			o.central += cost
		}
		m.request(cost)
		if at := w.now + 1 + int64(random.ExpFloat64()*mean); at < end {
			w.at(at, next)
		}
	}
	w.at(epoch, next)
	w.run(end)
	for _, u := range w.uses {
		o.used += u.cost
	}
	o.claims = float64(w.calls) / float64(end-epoch) * 1e6
	return o
}

// replay is a store in memory, which agrees with the model, and whose time is set with each use.
type replay struct {
	clock *clock.Fake
	store *memory.Store
	rule  *limiter.Rule
}

func newReplay(r *limiter.Rule) replay {
	c := clock.NewFake(time.UnixMicro(epoch))
	return replay{c, memory.New(memory.Options{Clock: c}), r}
}

func (p replay) admits(u use) bool {
	p.clock.Advance(time.UnixMicro(u.at).Sub(p.clock.Now()))
	results, err := p.store.Decide(context.Background(), []limiter.Check{{Rule: p.rule, Key: "k", Cost: u.cost}})
	return err == nil && results[0].Allowed
}

func TestLeasesUseNearlyTheWholeLimitWithFewRoundTrips(t *testing.T) {
	t.Parallel()
	for name, a := range leased {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, l := range loads() {
				if a != limiter.SlidingWindowLog || l.requests() <= limiter.MaxLogRequests {
					l.check(t, w, a)
				}
			}
		})
	}
}

func (l load) check(t *testing.T, w *world, a limiter.Algorithm) {
	t.Helper()
	r := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Hybrid,
		Limits: []limiter.Limit{{Requests: l.requests(), Window: l.window}},
	}
	o, life := l.run(w, r), lease.Life(r)
	over, bound := 0, newReplay(r)
	for _, u := range w.uses {
		if !bound.admits(u) {
			over++
		}
	}
	least := .99
	if l.window < 100*life {
		least = .95 * l.window.Seconds() / (l.window + life).Seconds()
	}
	got, most := float64(o.used)/float64(o.central), 2.5*members/life.Seconds()
	line := fmt.Sprintf("%5d/s, window %4s, load %4.1f: %d too many, use %.4f (least %.4f), %3.0f claims/s (most %.0f)",
		l.perSecond, l.window, l.factor, over, got, least, o.claims, most)
	if over > 0 || got < least || o.claims > most {
		t.Error(line)
		return
	}
	t.Log(line)
}
