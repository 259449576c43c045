package redis_test

import (
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter/redis"
	"github.com/sluice-dev/sluice/limiter/storetest"
)

func TestStoreDecidesAsTheModels(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, now int64) storetest.Harness {
		t.Helper()
		v := newVirtual(t, now)
		return storetest.Harness{Store: v.store, Repeat: v.store.Fold, Set: v.set, Settle: v.settle, Reset: v.reset}
	})
}

func TestStoreThatRemembersRefusalsRefusesAsTheModels(t *testing.T) {
	t.Parallel()
	storetest.RunSchedules(t, func(t *testing.T, now int64) storetest.Harness {
		t.Helper()
		v := newVirtual(t, now)
		return storetest.Harness{Store: v.store, Remembers: true, Set: v.set, Reset: v.reset}
	})
}

// virtual is a store whose server and process have the same time, which stands still.
type virtual struct {
	store  *redis.Store
	set    func(now int64)
	settle func()
	reset  func()
}

func newVirtual(t *testing.T, now int64) *virtual {
	t.Helper()
	server := testredis.Start(t)
	client := server.Client()
	local := clock.NewFake(time.UnixMicro(now))
	store := open(t, redis.Options{
		Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second, Clock: local,
	}).WithTestTime()
	set := func(at int64) {
		local.Advance(time.UnixMicro(at).Sub(local.Now()))
		if err := client.Set(t.Context(), redis.TestTime, at, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set(now)
	return &virtual{store: store, set: set, settle: func() { await(t, "all calls are sent", store.Idle) }, reset: func() {
		store.Forget()
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}}
}
