package redis_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/redis"
)

// benchStore is a store whose benchmark also reports processor time, of both sides, a decision: on a machine that has
// other things to do, it says more than the time on the wall.
func benchStore(b *testing.B) *redis.Store {
	b.Helper()
	server := testredis.Start(b)
	client := server.Client()
	own, its := ownTime(b), serverTime(b, client)
	b.Cleanup(func() {
		b.ReportMetric(float64(ownTime(b)-own)/1e3/float64(b.N), "µs-client/op")
		b.ReportMetric(float64(serverTime(b, client)-its)/1e3/float64(b.N), "µs-server/op")
		_, usec, _ := strings.Cut(client.InfoMap(context.Background(), "commandstats").Item("Commandstats", "cmdstat_evalsha"), "usec_per_call=")
		usec, _, _ = strings.Cut(usec, ",")
		if n, err := strconv.ParseFloat(usec, 64); err == nil {
			b.ReportMetric(n, "µs-script/call")
		}
	})
	store := redis.Open(redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second})
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	return store
}

func ownTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func serverTime(b *testing.B, c *goredis.Client) time.Duration {
	b.Helper()
	var total float64
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		n, err := strconv.ParseFloat(c.InfoMap(context.Background(), "cpu").Item("CPU", name), 64)
		if err != nil {
			b.Fatal(err)
		}
		total += n
	}
	return time.Duration(total * float64(time.Second))
}

func benchRule(a limiter.Algorithm, requests int64) *limiter.Rule {
	r := perMonth("ns/p/r/t", a, requests)
	r.Limits[0].Window = time.Second
	r.Queue = limiter.Queue{MaxLength: 1 << 20, MaxWait: time.Hour}
	return r
}

func benchDecide(s *redis.Store, r *limiter.Rule, key string) error {
	_, err := s.Decide(context.Background(), []limiter.Check{{Rule: r, Key: key, Cost: 1}})
	return err
}

// BenchmarkLone is one caller after the other: a round trip each.
func BenchmarkLone(b *testing.B) {
	for name, a := range algorithms {
		b.Run(name, func(b *testing.B) {
			store, rule := benchStore(b), benchRule(a, 1_000_000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := benchDecide(store, rule, strconv.Itoa(i%1000)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCrowd is 256 callers at once, who share round trips, and with few keys calls.
func BenchmarkCrowd(b *testing.B) {
	for _, keys := range []int{10, 1000} {
		b.Run(strconv.Itoa(keys)+"keys", func(b *testing.B) {
			store, rule := benchStore(b), benchRule(limiter.TokenBucket, 1_000_000)
			var n atomic.Int64
			b.SetParallelism(128)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := benchDecide(store, rule, strconv.FormatInt(n.Add(1)%int64(keys), 10)); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// BenchmarkRemembered is a refusal that takes no round trip.
func BenchmarkRemembered(b *testing.B) {
	store, rule := benchStore(b), perMonth("ns/p/r/t", limiter.TokenBucket, 1)
	if err := benchDecide(store, rule, "k"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := benchDecide(store, rule, "k"); err != nil {
			b.Fatal(err)
		}
	}
}
