package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/redis"
)

const patient = 5 * time.Second

func TestAClusterThatIsReshardedCountsOn(t *testing.T) {
	t.Parallel()
	nodes := testredis.Cluster(t, 3)
	store := open(t, redis.Options{Topology: redis.Cluster, Addresses: nodes.Addrs(), Timeout: patient})
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowLog, 20)
	check := limiter.Check{Rule: rule, Key: "k", Cost: 1}
	admitted := 0
	ask := func(times int) {
		for range times {
			if decide(t, store, rule).Allowed {
				admitted++
			}
		}
	}
	ask(5)
	nodes.Move(t, string(check.CounterKey(nil, 0)), func() { ask(5) })
	ask(5)
	nodes.Move(t, string(check.CounterKey(nil, 0)), func() { ask(5) })
	store.Forget()
	ask(5)
	if admitted != 20 {
		t.Errorf("admitted %d of 25 while the key moved, want 20", admitted)
	}
}

func TestInAClusterARefusalOnOneNodeGivesTheOthersTheirChargeBack(t *testing.T) {
	t.Parallel()
	nodes := testredis.Cluster(t, 3)
	store := open(t, redis.Options{Topology: redis.Cluster, Addresses: nodes.Addrs(), Timeout: patient})
	checks := make([]limiter.Check, 0, 9)
	for i := range 8 {
		checks = append(checks, limiter.Check{Rule: perMonth(fmt.Sprintf("ns/p/wide%d/t", i), limiter.FixedWindow, 10), Key: "k", Cost: 1})
	}
	checks = append(checks, limiter.Check{Rule: perMonth("ns/p/narrow/t", limiter.FixedWindow, 3), Key: "k", Cost: 1})
	for i := range 6 {
		store.Forget()
		got, err := store.Decide(t.Context(), checks)
		if err != nil {
			t.Fatal(err)
		}
		if got[8].Allowed != (i < 3) {
			t.Errorf("request %d: %+v", i, got[8])
		}
		await(t, "charges are given back", store.Idle)
	}
	for i, c := range checks {
		if got := decide(t, store, c.Rule).Limits[0].Current; got != min(4, c.Rule.Limits[0].Requests) {
			t.Errorf("rule %d counts %d, want the three that passed, and this", i, got)
		}
	}
}

func TestAFailOverBySentinelsLosesAtMostWhatWasNotReplicated(t *testing.T) {
	t.Parallel()
	watched := testredis.Sentinel(t)
	store := open(t, redis.Options{
		Topology: redis.Sentinel, Addresses: watched.Addrs(), MasterName: testredis.MasterName, Timeout: 2 * time.Second,
	})
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowLog, 20)
	for range 10 {
		decide(t, store, rule)
	}
	if n, err := watched.Master.Client().Wait(t.Context(), 1, patient).Result(); err != nil || n != 1 {
		t.Fatalf("replicated to %d: %v", n, err)
	}
	watched.Master.Freeze()
	watched.AwaitPromotion()
	admitted := 10
	await(t, "the store decides again", func() bool {
		got, err := store.Decide(t.Context(), []limiter.Check{{Rule: rule, Key: "k", Cost: 1}})
		if err == nil && got[0].Allowed {
			admitted++
		}
		return err == nil
	})
	for range 15 {
		if decide(t, store, rule).Allowed {
			admitted++
		}
	}
	watched.Master.Thaw()
	if admitted != 20 {
		t.Errorf("admitted %d over the fail-over, want 20, since everything was replicated", admitted)
	}
}

func TestADeadNodeOfAClusterHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	nodes := testredis.Cluster(t, 3)
	const timeout = 4 * time.Second
	store := open(t, redis.Options{Topology: redis.Cluster, Addresses: nodes.Addrs(), Timeout: timeout})
	rule := perMonth("ns/p/r/t", limiter.FixedWindow, 1000)
	decideKey := func(key int) error {
		_, err := store.Decide(context.Background(), []limiter.Check{{Rule: rule, Key: strconv.Itoa(key), Cost: 1}})
		return err
	}
	for key := range 30 {
		if err := decideKey(key); err != nil {
			t.Fatal(err)
		}
	}
	nodes.Servers[0].Freeze()
	var alive, dead atomic.Int64
	var group sync.WaitGroup
	for key := range 30 {
		group.Go(func() {
			started := time.Now()
			err := decideKey(key)
			switch took := time.Since(started); {
			case err != nil:
				dead.Add(1)
			case took < timeout/2:
				alive.Add(1)
			}
		})
	}
	group.Wait()
	nodes.Servers[0].Thaw()
	if alive.Load() < 10 || dead.Load() < 3 || alive.Load()+dead.Load() != 30 {
		t.Errorf("of 30 keys on three nodes, %d were decided at once and %d failed; want those of two nodes, and of one",
			alive.Load(), dead.Load())
	}
}
