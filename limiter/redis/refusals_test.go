package redis_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/redis"
)

// watched is a store on a fake clock that counts its round trips.
type watched struct {
	*redis.Store
	server *testredis.Server
	clock  *clock.Fake
	trips  atomic.Int64
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{server: testredis.Start(t), clock: clock.NewFake(time.Unix(0, 0))}
	w.Store = open(t, redis.Options{
		Topology: redis.Standalone, Addresses: []string{w.server.Addr}, Timeout: 10 * time.Second,
		RoundTrip: func() { w.trips.Add(1) }, Clock: w.clock,
	})
	return w
}

// exhaust asks once more than a rule of one admits.
func (w *watched) exhaust(t *testing.T, r *limiter.Rule) {
	t.Helper()
	decide(t, w.Store, r)
	if decide(t, w.Store, r).Allowed {
		t.Fatal("the limit admits more")
	}
}

// asked tells whether the next decision takes a round trip.
func (w *watched) asked(t *testing.T, r *limiter.Rule) bool {
	t.Helper()
	before := w.trips.Load()
	decide(t, w.Store, r)
	return w.trips.Load() > before
}

func TestARefusalIsRememberedUntilItsRetryAfter(t *testing.T) {
	t.Parallel()
	w := watch(t)
	rule := perMonth("ns/p/r/t", limiter.SlidingWindowLog, 1)
	rule.Limits[0].Window = 900 * time.Millisecond
	told := 900 * time.Millisecond
	for told > 850*time.Millisecond { // the server's own clock runs on
		w.Forget()
		w.exhaust(t, rule)
		told = decide(t, w.Store, rule).RetryAfter
	}
	w.clock.Advance(told - time.Microsecond)
	if w.asked(t, rule) {
		t.Error("the server was asked before retry-after had passed")
	}
	if got := decide(t, w.Store, rule); got.Allowed || got.RetryAfter != time.Microsecond {
		t.Errorf("told %s, want the microsecond that is left", got.RetryAfter)
	}
	w.clock.Advance(time.Microsecond)
	if !w.asked(t, rule) {
		t.Error("the server was not asked after retry-after had passed")
	}
}

func TestALongRefusalIsAskedForAgainEachSecond(t *testing.T) {
	t.Parallel()
	w := watch(t)
	rule := perMonth("ns/p/r/t", limiter.TokenBucket, 1)
	w.exhaust(t, rule)
	if w.asked(t, rule) {
		t.Error("the server was asked again at once")
	}
	w.clock.Advance(time.Second)
	if !w.asked(t, rule) {
		t.Error("the server was not asked after a second")
	}
}

func TestARefusalIsForgottenByEditResetAndReconnect(t *testing.T) {
	t.Parallel()
	w := watch(t)
	rule := perMonth("ns/p/r/t", limiter.TokenBucket, 1)
	w.exhaust(t, rule)
	edited := *rule
	if !w.asked(t, &edited) {
		t.Error("an edited rule was refused by what was said of the former")
	}
	w.Forget()
	if !w.asked(t, rule) {
		t.Error("the server was not asked after a reset")
	}
	if err := w.server.Client().Do(t.Context(), "client", "kill", "type", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	other := perMonth("ns/p/other/t", limiter.TokenBucket, 1)
	await(t, "the store has connected again", func() bool {
		_, err := w.Decide(t.Context(), []limiter.Check{{Rule: other, Key: "k", Cost: 1}})
		w.clock.Advance(time.Nanosecond)
		return err == nil && w.asked(t, rule)
	})
}

func TestNoRefusalIsRememberedWhereAnotherCallMayDiffer(t *testing.T) {
	t.Parallel()
	w := watch(t)
	leaky := perMonth("ns/p/leaky/t", limiter.LeakyBucket, 1)
	leaky.Queue = limiter.Queue{MaxLength: 1, MaxWait: time.Millisecond}
	shadow := perMonth("ns/p/shadow/t", limiter.FixedWindow, 1)
	shadow.Shadow = true
	counting := perMonth("ns/p/counting/t", limiter.SlidingWindowLog, 1)
	counting.CountRejected = true
	for name, rule := range map[string]*limiter.Rule{
		"a queue": leaky, "a shadow": shadow, "a log that counts refused requests": counting,
	} {
		w.exhaust(t, rule)
		if !w.asked(t, rule) {
			t.Errorf("the refusal of %s was remembered", name)
		}
	}
}

func TestRefusedAttemptsAreAddedUpAndCounted(t *testing.T) {
	t.Parallel()
	w := watch(t)
	rule := perMonth("ns/p/r/t", limiter.FixedWindow, 1)
	rule.CountRejected = true
	w.exhaust(t, rule)
	before := w.trips.Load()
	for i := range int64(10) {
		if got := decide(t, w.Store, rule); got.Allowed || got.Limits[0].Current != 3+i {
			t.Errorf("attempt %d: %+v", i, got)
		}
	}
	if w.trips.Load() != before {
		t.Error("attempts took round trips")
	}
	w.clock.AwaitTimers(1)
	w.clock.Advance(100 * time.Millisecond)
	await(t, "the attempts are sent", func() bool { return w.trips.Load() == before+1 })
	w.Forget()
	if got := decide(t, w.Store, rule).Limits[0].Current; got != 13 {
		t.Errorf("%d are counted, want 1 admitted, 11 refused, and this", got)
	}
}
