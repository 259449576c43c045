package redis_test

import (
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter/redis"
	"github.com/sluice-dev/sluice/limiter/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, now int64) storetest.Harness {
		t.Helper()
		server := testredis.Start(t)
		client := server.Client()
		store := redis.Open(redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second}).WithTestTime()
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		set := func(at int64) {
			if err := client.Set(t.Context(), redis.TestTime, at, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		set(now)
		return storetest.Harness{Store: store, Repeat: store.Fold, Set: set, Reset: func() {
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}}
	})
}
