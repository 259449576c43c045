package hybrid_test

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/hybrid"
	"github.com/sluice-dev/sluice/limiter/memory"
	"github.com/sluice-dev/sluice/limiter/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a sidecar's limiter on a store that it shares with others.
type process struct {
	engine  *limiter.Engine
	backend *limiter.Backend
	leases  *hybrid.Store
	trips   atomic.Int64
}

func (p *process) RoundTrip(string)        { p.trips.Add(1) }
func (*process) StoreError(string, string) {}
func (*process) CircuitOpen(string, bool)  {}

func start(tb testing.TB, addr string) *process {
	tb.Helper()
	return startOn(tb, redis.Options{Topology: redis.Standalone, Addresses: []string{addr}})
}

func startOn(tb testing.TB, o redis.Options) *process {
	tb.Helper()
	p := &process{}
	o.Timeout, o.RoundTrip = 5*time.Second, func() { p.trips.Add(1) }
	store := redis.Open(o)
	p.backend = limiter.NewBackend("ns/redis", store, p, slog.New(slog.NewTextHandler(io.Discard, nil)))
	p.backend.Lease(func(l limiter.Lessor) limiter.Store {
		p.leases = hybrid.New(l, clock.Real())
		return p.leases
	})
	p.engine = limiter.NewEngine(memory.New(memory.Options{}))
	tb.Cleanup(func() {
		p.leases.Close()
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func (p *process) rule(a limiter.Algorithm, requests int64) *limiter.Rule {
	return p.named("ns/p/r/t", a, requests)
}

func (p *process) named(scope string, a limiter.Algorithm, requests int64) *limiter.Rule {
	r := &limiter.Rule{
		Scope: scope, Namespace: "ns", Algorithm: a, Mode: limiter.Hybrid, Backend: p.backend, OnFailure: limiter.FailDeny,
		Limits: []limiter.Limit{{Requests: requests, Window: 24 * time.Hour}},
	}
	return r
}

// ask sends requests until n were decided, and returns how many of them may pass.
func (p *process) ask(t *testing.T, n int, rules ...*limiter.Rule) int {
	t.Helper()
	checks := make([]limiter.Check, len(rules))
	for i, r := range rules {
		checks[i] = limiter.Check{Rule: r, Key: "k", Cost: 1}
	}
	passed := 0
	for range n {
		results, err := p.engine.Decide(context.Background(), checks)
		if err != nil {
			t.Error(err)
			return passed
		}
		passes := 1
		for _, r := range results {
			if !r.Allowed {
				passes = 0
			}
		}
		passed += passes
	}
	return passed
}

func TestProcessesTogetherNeverAdmitMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	const limit, each = 5000, 400
	var passed atomic.Int64
	var crowd sync.WaitGroup
	var trips int64
	processes := make([]*process, 4)
	for i := range processes {
		processes[i] = start(t, server.Addr)
		r := processes[i].rule(limiter.SlidingWindowLog, limit)
		for range 8 {
			crowd.Go(func() { passed.Add(int64(processes[i].ask(t, each, r))) })
		}
	}
	crowd.Wait()
	for _, p := range processes {
		trips += p.trips.Load()
	}
	ask := func() {
		for _, p := range processes {
			passed.Add(int64(p.ask(t, 1, p.rule(limiter.SlidingWindowLog, limit))))
		}
	}
	eventually(t, func() bool { ask(); return passed.Load() >= limit })
	for range 100 {
		ask()
	}
	if n := passed.Load(); n != limit {
		t.Errorf("%d requests passed a limit of %d", n, limit)
	}
	if asked := int64(len(processes) * 8 * each); trips > asked/4 {
		t.Errorf("%d round trips for %d requests", trips, asked)
	}
}

func TestAProcessThatStopsGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog, limiter.SlidingWindowCounter} {
		if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		p := start(t, server.Addr)
		if passed := p.ask(t, 100, p.rule(a, 1000)); passed != 100 {
			t.Errorf("algorithm %d: %d of 100 passed", a, passed)
		}
		if p.leases.Held() == 0 {
			t.Errorf("algorithm %d: nothing is leased after 100 requests in a row", a)
		}
		p.leases.Close()
		if n := p.counted(t, a); n != 100 {
			t.Errorf("algorithm %d: %d units are counted after 100 requests", a, n)
		}
	}
}

// counted is what the store has counted, as mode Central sees it.
func (p *process) counted(t *testing.T, a limiter.Algorithm) int64 {
	t.Helper()
	return p.countedBy(t, p.rule(a, 1000))
}

func (p *process) countedBy(t *testing.T, leased *limiter.Rule) int64 {
	t.Helper()
	r := *leased
	r.Mode = limiter.Central
	results, err := p.engine.Decide(t.Context(), []limiter.Check{{Rule: &r, Key: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	return results[0].Limits[0].Current
}

func TestUnusedUnitsGoBackWhenNobodyCalls(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := start(t, server.Addr)
	p.ask(t, 100, p.rule(limiter.FixedWindow, 1000))
	eventually(t, func() bool { return p.leases.Held() == 0 && p.counted(t, limiter.FixedWindow) == 100 })
}

func TestARequestThatAnotherRuleRefusesCostsNothing(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	for name, mode := range map[string]limiter.Mode{"leased": limiter.Hybrid, "central": limiter.Central} {
		p := start(t, server.Addr)
		wide := p.rule(limiter.FixedWindow, 1000)
		wide.Scope += name
		narrow := p.named("ns/p/"+name+"/t", limiter.FixedWindow, 50)
		narrow.Mode = mode
		passed := p.ask(t, 300, wide, narrow)
		if passed > 50 || passed < 25 {
			t.Errorf("%s: %d requests passed a limit of 50", name, passed)
		}
		p.leases.Close()
		eventually(t, func() bool { return p.countedBy(t, wide) == int64(passed) })
	}
}

func TestLeasedUnitsLastWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := start(t, server.Addr)
	r := p.rule(limiter.TokenBucket, 1_000_000)
	p.ask(t, 1000, r)
	held := p.leases.Held()
	server.Stop()
	if passed := p.ask(t, 3, r); held > 10 && passed != 3 {
		t.Errorf("%d of 3 requests passed with %d units leased", passed, held)
	}
	results, err := p.engine.Decide(t.Context(), []limiter.Check{{Rule: r, Key: "another", Cost: 1}})
	if err != nil || results[0].Source != limiter.FailedDeny {
		t.Errorf("%+v, %v; want the failure policy for a key that nothing is leased for", results, err)
	}
}

func TestAnEditGivesBackWhatWasLeasedUnderOtherLimits(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := start(t, server.Addr)
	p.ask(t, 100, p.rule(limiter.SlidingWindowLog, 1000))
	if passed := p.ask(t, 100, p.rule(limiter.SlidingWindowLog, 120)); passed > 20 {
		t.Errorf("%d requests passed after 100, with 120 allowed", passed)
	}
	eventually(t, func() bool {
		p.ask(t, 1, p.rule(limiter.SlidingWindowLog, 120))
		return p.counted(t, limiter.SlidingWindowLog) == 120
	})
}

func TestRulesThatAreNotLeasedAreDecidedByTheStore(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := start(t, server.Addr)
	leaky := p.rule(limiter.LeakyBucket, 1000)
	leaky.Queue = limiter.Queue{MaxLength: 10, MaxWait: time.Hour}
	counted := p.named("ns/p/counted/t", limiter.FixedWindow, 1)
	counted.CountRejected = true
	short := p.named("ns/p/short/t", limiter.FixedWindow, 1000)
	short.Limits[0].Window = 100 * time.Millisecond
	for _, r := range []*limiter.Rule{leaky, counted, short} {
		for range 3 {
			results, err := p.engine.Decide(t.Context(), []limiter.Check{{Rule: r, Key: "k", Cost: 1}})
			if err != nil || results[0].Source != limiter.FromStore {
				t.Errorf("%s: %+v, %v", r.Scope, results, err)
			}
		}
	}
}

func TestACostAboveTheLimitCanNeverPass(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	p := start(t, server.Addr)
	results, err := p.engine.Decide(t.Context(), []limiter.Check{{Rule: p.rule(limiter.FixedWindow, 10), Key: "k", Cost: 11}})
	if err != nil || results[0].Allowed || results[0].RetryAfter != limiter.Never {
		t.Errorf("%+v, %v", results, err)
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
		<-tick.C
	}
}

func TestProcessesOnAClusterShareLimitsOnAllItsNodes(t *testing.T) {
	t.Parallel()
	nodes := testredis.Cluster(t, 3)
	o := redis.Options{Topology: redis.Cluster, Addresses: nodes.Addrs()}
	first, second := startOn(t, o), startOn(t, o)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		passed := 0
		ask := func() {
			for _, p := range []*process{first, second} {
				passed += p.ask(t, 1, p.named("ns/p/"+name+"/t", limiter.SlidingWindowLog, 60), p.named("ns/q/"+name+"/t", limiter.TokenBucket, 1000))
			}
		}
		eventually(t, func() bool { ask(); return passed >= 60 })
		for range 10 {
			ask()
		}
		if passed != 60 {
			t.Errorf("%s: %d requests passed a limit of 60", name, passed)
		}
	}
}

func TestClaimsForManyKeysShareRoundTrips(t *testing.T) {
	t.Parallel()
	p := start(t, testredis.Start(t).Addr)
	r := p.rule(limiter.FixedWindow, 10)
	const keys = 2000
	var crowd sync.WaitGroup
	for i := range keys {
		crowd.Go(func() {
			results, err := p.engine.Decide(context.Background(), []limiter.Check{{Rule: r, Key: strconv.Itoa(i), Cost: 1}})
			if err != nil || !results[0].Allowed || results[0].Source != limiter.FromStore {
				t.Errorf("key %d: %+v, %v", i, results, err)
			}
		})
	}
	crowd.Wait()
	if n := p.trips.Load(); n > keys/4 {
		t.Errorf("%d round trips for %d keys", n, keys)
	}
}

func BenchmarkDecideByALease(b *testing.B) {
	p := start(b, testredis.Start(b).Addr)
	checks := []limiter.Check{{Rule: p.rule(limiter.TokenBucket, 1_000_000_000), Key: "k", Cost: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.engine.Decide(b.Context(), checks); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(p.trips.Load())/float64(b.N), "trips/op")
}
