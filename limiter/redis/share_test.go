package redis_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/redis"
)

func open(t *testing.T, o redis.Options) *redis.Store {
	t.Helper()
	store := redis.Open(o)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func perMonth(scope string, a limiter.Algorithm, requests int64) *limiter.Rule {
	return &limiter.Rule{
		Scope: scope, Namespace: "ns", Algorithm: a, Mode: limiter.Central,
		Limits: []limiter.Limit{{Requests: requests, Window: limiter.MaxWindow}},
	}
}

func decide(t *testing.T, s *redis.Store, r *limiter.Rule) limiter.Result {
	t.Helper()
	got, err := s.Decide(t.Context(), []limiter.Check{{Rule: r, Key: "k", Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

// await waits for a condition that another process brings about.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestCallersOfOneKeyShareARoundTripAndAreToldTheirOwnRemaining(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var trips atomic.Int64
	store := open(t, redis.Options{
		Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second,
		RoundTrip: func() { trips.Add(1) },
	})
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowLog, 50)
	decide(t, store, rule)
	before := trips.Load()
	server.Freeze()
	var mu sync.Mutex
	var remaining []int64
	var group sync.WaitGroup
	ask := func() {
		got, err := store.Decide(context.Background(), []limiter.Check{{Rule: rule, Key: "k", Cost: 1}})
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if got[0].Allowed {
			remaining = append(remaining, got[0].Limits[0].Remaining)
		}
	}
	group.Go(ask)
	await(t, "the first call is on its way", func() bool { return trips.Load() == before+1 })
	for range 100 {
		group.Go(ask)
	}
	await(t, "all others wait", func() bool { return store.Waiting() == 100 })
	server.Thaw()
	group.Wait()
	if got := trips.Load() - before; got != 2 {
		t.Errorf("101 callers took %d round trips, want 2", got)
	}
	slices.Sort(remaining)
	if len(remaining) != 49 || remaining[0] != 0 || remaining[48] != 48 || len(slices.Compact(remaining)) != 49 {
		t.Errorf("admitted callers were told that %v remain, want each of 0 to 48 once", remaining)
	}
}

func TestACallerThatLeavesWhileItWaitsIsNotCounted(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var trips atomic.Int64
	store := open(t, redis.Options{
		Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second,
		RoundTrip: func() { trips.Add(1) },
	})
	rule := perMonth("ns/p/r/t", limiter.FixedWindow, 50)
	decide(t, store, rule)
	before := trips.Load()
	server.Freeze()
	var group sync.WaitGroup
	group.Go(func() { decide(t, store, perMonth("ns/p/other/t", limiter.FixedWindow, 50)) })
	await(t, "a call is on its way", func() bool { return trips.Load() == before+1 })
	ctx, leave := context.WithCancel(t.Context())
	for range 10 {
		group.Go(func() {
			_, err := store.Decide(ctx, []limiter.Check{{Rule: rule, Key: "k", Cost: 1}})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that left got %v", err)
			}
		})
	}
	await(t, "callers wait", func() bool { return store.Waiting() == 10 })
	leave()
	await(t, "they have left", func() bool { return store.Waiting() == 0 })
	server.Thaw()
	group.Wait()
	if got := decide(t, store, rule).Limits[0].Current; got != 2 {
		t.Errorf("%d counted, want the two that did not leave", got)
	}
}

func TestACallerThatLeavesWhileItsCallIsOnItsWayGivesBackWhatItReserved(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var trips atomic.Int64
	store := open(t, redis.Options{
		Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second,
		RoundTrip: func() { trips.Add(1) },
	})
	rule := perMonth("ns/p/r/t", limiter.LeakyBucket, 50)
	rule.Queue = limiter.Queue{MaxLength: 10, MaxWait: limiter.MaxWindow}
	decide(t, store, rule)
	before := trips.Load()
	server.Freeze()
	ctx, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := store.Decide(ctx, []limiter.Check{{Rule: rule, Key: "k", Cost: 1}}); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left got %v", err)
		}
	})
	await(t, "the call is on its way", func() bool { return trips.Load() == before+1 })
	leave()
	group.Wait()
	server.Thaw()
	await(t, "the reservation is given back", func() bool {
		got, err := store.Decide(t.Context(), []limiter.Check{{Rule: rule, Key: "k"}})
		return err == nil && got[0].Limits[0].Current == 1
	})
	if got := trips.Load() - before; got < 2 {
		t.Errorf("%d round trips, want another that gives back", got)
	}
}

func TestAFlushedScriptIsLoadedAgainWithoutAnError(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	client := server.Client()
	store := open(t, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second})
	rule := perMonth("ns/p/r/t", limiter.TokenBucket, 50)
	for i := range int64(5) {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if got := decide(t, store, rule); got.Limits[0].Current != i+1 {
			t.Errorf("after %d flushes %d are counted, want %d", i+1, got.Limits[0].Current, i+1)
		}
	}
}

func TestNoRequestWaitsForAFrozenServerBeyondTheTimeOut(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	const timeout = 300 * time.Millisecond
	store := open(t, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: timeout})
	rule := perMonth("ns/p/r/t", limiter.TokenBucket, 1000)
	decide(t, store, rule)
	server.Freeze()
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			started := time.Now()
			_, err := store.Decide(context.Background(), []limiter.Check{{Rule: rule, Key: "k", Cost: 1}})
			if err == nil {
				t.Error("a frozen server decided")
			}
			if took := time.Since(started); took > timeout+2*time.Second { // the machine may be busy
				t.Errorf("waited %s for a server with a time-out of %s", took, timeout)
			}
		})
	}
	group.Wait()
	server.Thaw()
	await(t, "the server decides again", func() bool {
		_, err := store.Decide(t.Context(), []limiter.Check{{Rule: rule, Key: "k", Cost: 1}})
		return err == nil
	})
}
