package redis_test

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/model"
	"github.com/sluice-dev/sluice/limiter/redis"
)

var algorithms = map[string]limiter.Algorithm{
	"TokenBucket": limiter.TokenBucket, "LeakyBucket": limiter.LeakyBucket, "FixedWindow": limiter.FixedWindow,
	"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
}

// skewed is a clock that is off.
type skewed struct {
	clock.Clock
	by time.Duration
}

func (s skewed) Now() time.Time { return s.Clock.Now().Add(s.by) }

// crowd is many processes with a pool each, whose clocks are up to five minutes off.
func crowd(t *testing.T, n int, o redis.Options) []*redis.Store {
	t.Helper()
	o.Timeout = 20 * time.Second
	stores := make([]*redis.Store, n)
	for i := range stores {
		o.Clock = skewed{clock.Real(), time.Duration(rand.Int64N(600)-300) * time.Second}
		stores[i] = open(t, o)
	}
	return stores
}

// admissions has, for each key, when its requests were admitted by the server's clock.
type admissions struct {
	mu sync.Mutex
	at map[string][]int64
}

// ask has each process put requests for keys in a random order until it has made so many rounds of them.
func ask(t *testing.T, stores []*redis.Store, r *limiter.Rule, keys, rounds int) *admissions {
	t.Helper()
	all := &admissions{at: map[string][]int64{}}
	var group sync.WaitGroup
	for _, s := range stores {
		group.Go(func() {
			for range rounds {
				for _, k := range rand.Perm(keys) {
					all.ask(t, s, r, strconv.Itoa(k))
				}
			}
		})
	}
	group.Wait()
	return all
}

func (a *admissions) ask(t *testing.T, s *redis.Store, r *limiter.Rule, key string) {
	t.Helper()
	got, err := s.Decide(context.Background(), []limiter.Check{{Rule: r, Key: key, Cost: 1}})
	if err != nil {
		t.Errorf("decide: %v", err)
		return
	}
	if got[0].Allowed {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at[key] = append(a.at[key], got[0].At)
	}
}

// check replays admissions in the model: each must have fitted when it was made.
func (a *admissions) check(t *testing.T, r *limiter.Rule) {
	t.Helper()
	for key, at := range a.at {
		slices.Sort(at)
		c := model.New(r.Algorithm)
		for i, now := range at {
			c.Edit(now, r.Limits[0], r.Queue)
			if !c.Fits(now, 1) {
				t.Errorf("key %s: admission %d of %d is one too many", key, i+1, len(at))
				break
			}
			c.Add(now, 1)
		}
	}
}

// saturate asks for much more than a limit admits: of a long window, exactly the limit passes; of short ones, never one
// too many.
func saturate(t *testing.T, stores []*redis.Store, keys int) {
	t.Helper()
	for name, a := range algorithms {
		month, want := perMonth("ns/p/"+name+"/long", a, 20), 20
		short := perMonth("ns/p/"+name+"/short", a, 5)
		short.Limits[0].Window = 100 * time.Millisecond
		if a == limiter.LeakyBucket {
			month.Queue, want = limiter.Queue{MaxLength: 9, MaxWait: limiter.MaxWindow}, 10
			short.Queue = limiter.Queue{MaxLength: 3, MaxWait: time.Second}
		}
		rounds := 50/len(stores) + 1
		first := ask(t, stores, month, keys, rounds)
		for k := range keys {
			if got := len(first.at[strconv.Itoa(k)]); got != want {
				t.Errorf("%s: key %d was admitted %d times, want exactly %d", name, k, got, want)
			}
		}
		ask(t, stores, short, keys, rounds).check(t, short)
	}
}

// long asks for the long form of tests, see make test-long.
var long = os.Getenv("TEST_LONG") != ""

func TestFiftyProcessesAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	keys := 10
	if long {
		keys = 100
	}
	saturate(t, crowd(t, 50, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}}), keys)
}

func TestProcessesOnAClusterAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	nodes := testredis.Cluster(t, 3)
	saturate(t, crowd(t, 10, redis.Options{Topology: redis.Cluster, Addresses: nodes.Addrs()}), 10)
}

func TestACallerAtAHundredTimesItsLimitChangesNothingForAnother(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	stores := crowd(t, 4, redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}})
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowCounter, 50)
	var group sync.WaitGroup
	all := &admissions{at: map[string][]int64{}}
	for _, s := range stores {
		group.Go(func() {
			for range 5000 / len(stores) {
				all.ask(t, s, rule, "loud")
			}
		})
		group.Go(func() {
			for range 48 / len(stores) {
				all.ask(t, s, rule, "quiet")
			}
		})
	}
	group.Wait()
	if loud, quiet := len(all.at["loud"]), len(all.at["quiet"]); loud != 50 || quiet != 48 {
		t.Errorf("%d of the loud caller's 5000 and %d of the quiet one's 48 passed, want 50 and 48", loud, quiet)
	}
}

func TestTheServersClockSteppingBackAdmitsNothingMore(t *testing.T) {
	t.Parallel()
	for name, a := range algorithms {
		now := int64(1_796_126_400_000_000)
		v := newVirtual(t, now)
		rule := perMonth("ns/p/r/t", a, 3)
		rule.Limits[0].Window = time.Minute
		rule.Queue = limiter.Queue{MaxLength: 2, MaxWait: time.Minute}
		admitted := 0
		for _, step := range []time.Duration{0, -5 * time.Minute, -time.Hour, 0, 10 * time.Millisecond} {
			v.set(now + step.Microseconds())
			v.store.Forget()
			for range 5 {
				if decide(t, v.store, rule).Allowed {
					admitted++
				}
			}
		}
		if admitted != 3 {
			t.Errorf("%s admitted %d while the clock was set back and forth, want 3", name, admitted)
		}
	}
}
