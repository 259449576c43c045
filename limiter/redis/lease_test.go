package redis_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/internal/lease"
	"github.com/sluice-dev/sluice/limiter/model"
)

// epoch is a Tuesday noon, in microseconds.
const epoch = int64(1_796_126_400_000_000)

var leased = map[string]limiter.Algorithm{
	"TokenBucket": limiter.TokenBucket, "FixedWindow": limiter.FixedWindow,
	"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
}

// The bound itself: whatever members do and whatever happens to them, the model admits every request that they admitted,
// in the order and at the times at which those passed.
func TestLeasesNeverAdmitMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for name, a := range leased {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rapid.Check(t, func(rt *rapid.T) { leaseSchedule(rt, w, a) })
		})
	}
}

func leaseSchedule(rt *rapid.T, w *world, a limiter.Algorithm) {
	w.reset(epoch + rapid.Int64Range(0, 1e9).Draw(rt, "start"))
	r := drawLeasedRule(rt, a)
	start := w.now
	w.trip = func() int64 { return rapid.Int64Range(0, 24_000).Draw(rt, "trip") }
	for range rapid.IntRange(1, 4).Draw(rt, "members") {
		w.join(r, rapid.Int64Range(-300e6, 300e6).Draw(rt, "skew"), rapid.Int64Range(-10_000, 10_000).Draw(rt, "drift"))
	}
	faulty := rapid.Bool().Draw(rt, "faulty")
	w.fault = func() fault {
		if !faulty {
			return none
		}
		return rapid.SampledFrom([]fault{none, none, none, lostClaim, lostAnswer, lateClaim}).Draw(rt, "fault")
	}
	for range rapid.IntRange(5, 60).Draw(rt, "steps") {
		w.run(w.now + drawLeasePause(rt, w, r))
		w.step(rt, r, faulty)
	}
	w.run(w.now + 100_000)
	w.check(rt, r, start)
}

func (w *world) step(rt *rapid.T, r *limiter.Rule, faulty bool) {
	m := rapid.SampledFrom(w.members).Draw(rt, "member")
	what := "request"
	if faulty {
		what = rapid.SampledFrom([]string{"request", "request", "request", "request", "crash", "sleep", "stop", "set back"}).Draw(rt, "step")
	}
	switch what {
	case "crash":
		m.dead = true
		w.join(r, 0, 0)
	case "sleep":
		m.asleep = w.now + rapid.Int64Range(0, 1_000_000).Draw(rt, "sleep")
	case "stop":
		m.stop()
		w.join(r, 0, 0)
	case "set back":
		if r.Algorithm == limiter.SlidingWindowLog || r.Algorithm == limiter.TokenBucket { // others count by the clock's own windows
			w.back += rapid.SampledFrom([]int64{1000, 300e6}).Draw(rt, "back")
		}
	default:
		cost := rapid.SampledFrom([]int64{1, 1, 1, 1, 0, 2, 5}).Draw(rt, "cost")
		for range rapid.SampledFrom([]int{1, 2, 3, 5, 20, 400}).Draw(rt, "requests") {
			m.do(w.now, func() { m.request(cost) })
		}
	}
}

func (w *world) check(rt *rapid.T, r *limiter.Rule, start int64) {
	counters := make([]*model.Counter, len(r.Limits))
	for i, l := range r.Limits {
		counters[i] = model.New(r.Algorithm)
		counters[i].Edit(start, l, limiter.Queue{})
	}
	for n, u := range w.uses {
		for i, c := range counters {
			if !c.Fits(u.at, u.cost) {
				rt.Fatalf("use %d of %d units at %dµs is more than %+v admits: %d are counted",
					n, u.cost, u.at-start, r.Limits[i], c.Count(u.at))
			}
			c.Add(u.at, u.cost)
		}
	}
}

func drawLeasedRule(rt *rapid.T, a limiter.Algorithm) *limiter.Rule {
	r := &limiter.Rule{Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Hybrid}
	for i := range rapid.SampledFrom([]int{1, 1, 2}).Draw(rt, "windows") {
		l := limiter.Limit{
			Requests: rapid.SampledFrom([]int64{1, 3, 10, 10, 50, 50, 300}).Draw(rt, "requests"),
			Window:   rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second, 30 * time.Second, time.Hour}).Draw(rt, "window") + time.Duration(i)*time.Second,
		}
		if a == limiter.TokenBucket {
			l.Burst = l.Requests * rapid.SampledFrom([]int64{0, 1, 2}).Draw(rt, "burst")
		}
		r.Limits = append(r.Limits, l)
	}
	return r
}

// drawLeasePause likes the moments at which leases, windows and the stamps of earlier uses end.
func drawLeasePause(rt *rapid.T, w *world, r *limiter.Rule) int64 {
	window := r.Limits[0].Window.Microseconds()
	edge := w.now/window*window + window - w.now
	near := []int64{0, 0, lease.Life(r).Microseconds() / 3, lease.Life(r).Microseconds(), edge}
	if n := len(w.uses); n > 0 {
		near = append(near, w.uses[rapid.IntRange(0, n-1).Draw(rt, "use")].at+window-w.now)
	}
	return max(0, rapid.SampledFrom(near).Draw(rt, "near")+rapid.OneOf(
		rapid.Int64Range(-3_000, 3_000), rapid.Int64Range(-40_000, 40_000),
	).Draw(rt, "pause"))
}

// Who waits for retry-after, while nobody else calls, is admitted: what others hold and don't use comes back by then. A
// member that refuses between two claims only knows when it will ask the store again, which then tells.
func TestWhoIsRefusedByLeasesAndWaitsIsAdmitted(t *testing.T) {
	t.Parallel()
	for name, a := range leased {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rapid.Check(t, func(rt *rapid.T) { waitSchedule(rt, w, a) })
		})
	}
}

func waitSchedule(rt *rapid.T, w *world, a limiter.Algorithm) {
	w.reset(epoch + rapid.Int64Range(0, 1e9).Draw(rt, "start"))
	r := drawLeasedRule(rt, a)
	for range rapid.IntRange(1, 3).Draw(rt, "members") {
		w.join(r, 0, 0)
	}
	for range rapid.IntRange(1, 20).Draw(rt, "steps") {
		w.run(w.now + drawLeasePause(rt, w, r))
		w.step(rt, r, false)
	}
	w.run(w.now + 10_000)
	m, cost := w.members[0], rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(rt, "cost")
	wait, asked := m.ask(cost)
	if wait == 0 || wait == limiter.Never {
		return
	}
	w.run(asked + wait.Microseconds() + 1)
	again, asked := m.ask(cost)
	if again != 0 && wait < lease.Life(r) && len(w.members) > 1 {
		w.run(asked + again.Microseconds() + 1)
		again, _ = m.ask(cost)
	}
	if again != 0 {
		rt.Fatalf("refused for another %s after waiting %s for %d units of %+v", again, wait, cost, r.Limits)
	}
}

// ask makes a request and returns how long it is told to wait, 0 = it passed, and when it was told so.
func (m *member) ask(cost int64) (wait time.Duration, at int64) {
	m.asked = func(r limiter.Result) { wait, at = r.RetryAfter, m.w.now }
	m.request(cost)
	m.w.run(m.w.now + 2000)
	m.asked = nil
	return wait, at
}

func TestAClaimForThousandsOfCallersAndBesideThousandsOfLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: limiter.FixedWindow, Mode: limiter.Hybrid,
		Limits: []limiter.Limit{{Requests: 1_000_000, Window: time.Hour}},
	}
	const many = 3000
	leases := []byte(strconv.FormatInt(epoch, 10))
	for i := range int64(many) {
		leases = fmt.Appendf(leases, " %d 2 %d", 1+i, epoch+1_000_000)
	}
	check := limiter.Check{Rule: r, Key: "k"}
	if err := w.client.Set(t.Context(), string(check.LeasesKey(nil)), leases, 0).Err(); err != nil {
		t.Fatal(err)
	}
	asks := make([]limiter.Ask, many)
	for i := range asks {
		asks[i] = limiter.Ask{Cost: int64(1 + i%2), Callers: 1}
	}
	g := w.execute(&limiter.Claim{Rule: r, Key: "k", Holder: 1, Asks: asks, Life: time.Second})
	if got, want := g.Limits[0].Current, int64(2*(many-1)+many*3/2); got != want || len(g.Served) != many {
		t.Errorf("%d units are counted, want %d; %d callers were served, want %d", got, want, len(g.Served), many)
	}
}
