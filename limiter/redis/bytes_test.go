package redis_test

import (
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/redis"
)

func bytesOf(t *testing.T, c *goredis.Client, key string) int64 {
	t.Helper()
	n, err := c.MemoryUsage(t.Context(), key, 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestALogTakesAFourteenthOfASortedSet(t *testing.T) {
	t.Parallel()
	const entries = 1000
	server := testredis.Start(t)
	client := server.Client()
	store := open(t, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: patient})
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowLog, entries)
	rule.Limits[0].Window = time.Hour
	check := limiter.Check{Rule: rule, Key: "k", Cost: 1}
	key := string(check.CounterKey(nil, 0))
	for i := range entries {
		decide(t, store, rule)
		at := time.Now().UnixMicro()
		// The usual recipe: a member for each request, by its time, with something that tells ties apart.
		member := goredis.Z{Score: float64(at), Member: fmt.Sprintf("%d-%06d", at, i)}
		if err := client.ZAdd(t.Context(), "sorted set", member).Err(); err != nil {
			t.Fatal(err)
		}
		if n := int64(i + 1); n >= 100 && n%100 == 0 && bytesOf(t, client, key) > 8*n {
			t.Errorf("%d entries take %d bytes, more than 8 each", n, bytesOf(t, client, key))
		}
	}
	log, set := bytesOf(t, client, key), bytesOf(t, client, "sorted set")
	t.Logf("bytes an entry: %.1f, in a sorted set %.1f", float64(log)/entries, float64(set)/entries)
	if set < 14*log {
		t.Errorf("the log takes %d bytes, the sorted set %d, less than 14 times as many", log, set)
	}
}

func TestTheOtherAlgorithmsTakeOneSmallValueAKey(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	client := server.Client()
	store := open(t, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: patient})
	for name, a := range algorithms {
		rule := perMonth("ns/p/r/t", a, 1000)
		rule.Queue = limiter.Queue{MaxLength: 1000, MaxWait: limiter.MaxWindow}
		for range 100 {
			decide(t, store, rule)
		}
		check := limiter.Check{Rule: rule, Key: "k"}
		n := bytesOf(t, client, string(check.CounterKey(nil, 0)))
		t.Logf("%s: %d bytes a key", name, n)
		if a != limiter.SlidingWindowLog && n > 200 {
			t.Errorf("%s takes %d bytes a key", name, n)
		}
	}
}
