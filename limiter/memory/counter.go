package memory

import (
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// never stands for a retry-after that will not come, in microseconds.
const never = int64(-1)

// terms is what a limit asks of its counter, in units and microseconds.
type terms struct {
	requests, capacity, window int64
	queue, maxWait             int64 // LeakyBucket
}

// standing is what a counter says of itself after a decision, in units and microseconds.
type standing struct {
	remaining, current, reset, retry int64
}

// counter is the state of one limit for one key. Times are microseconds since the epoch.
type counter interface {
	// advance brings the counter to now, or to the newest time it has seen, under terms that may have been edited.
	advance(now int64, t terms)
	// fits tells whether cost more units would be admitted.
	fits(cost int64) bool
	// add charges cost units. A windowed counter may be charged beyond its limit.
	add(cost int64)
	// standing describes the counter; retry is for another request of this cost.
	standing(cost int64) standing
	// takeBack takes a charge back, as far as that can never admit more than if it had not been made. The receipt is the
	// time of the charge; of a leakyBucket, the end of the backlog as the charge left it.
	takeBack(now int64, t terms, cost, receipt int64)
	// expires is when nothing would be counted if nobody called.
	expires() int64
}

func newCounter(a limiter.Algorithm) counter {
	switch a {
	case limiter.TokenBucket:
		return &tokenBucket{}
	case limiter.LeakyBucket:
		return &leakyBucket{}
	case limiter.FixedWindow:
		return &fixedWindow{}
	case limiter.SlidingWindowLog:
		return &slidingLog{}
	default:
		return &slidingCounter{}
	}
}

func termsOf(r *limiter.Rule, l limiter.Limit) terms {
	return terms{
		requests: l.Requests, capacity: l.Capacity(), window: l.Window.Microseconds(),
		queue: r.Queue.MaxLength, maxWait: r.Queue.MaxWait.Microseconds(),
	}
}

// state is what the caller is told; a refused one also when to come back.
func (s standing) state(fits, allowed bool, limit int64) limiter.State {
	state := limiter.State{
		Allowed: fits, Limit: limit, Remaining: s.remaining, Current: s.current,
		ResetAfter: micros(s.reset),
	}
	if !allowed {
		state.RetryAfter = micros(s.retry)
	}
	return state
}

func micros(us int64) time.Duration {
	if us == never {
		return limiter.Never
	}
	return time.Duration(us) * time.Microsecond
}
