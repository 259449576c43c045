// Package model says what each algorithm means, as briefly as it can be said. It is slow, grows without bound and
// exists to be compared with: the stores must agree with it in every field of every decision.
//
// Times are whole microseconds since the epoch and must not run backwards.
package model

import (
	"math"
	"math/big"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// use is what was counted, and when.
type use struct{ at, units int64 }

// Counter is one limit for one key.
type Counter struct {
	algorithm limiter.Algorithm
	limit     limiter.Limit
	queue     limiter.Queue
	uses      []use    // windowed algorithms
	capacity  int64    // token bucket: the last that was not 0
	level     *big.Int // buckets: what has not drained, in units/window
	at        int64    // of level
}

// New returns a counter of nothing.
func New(a limiter.Algorithm) *Counter { return &Counter{algorithm: a, level: new(big.Int)} }

// Edit puts new terms in force from now on. A token bucket keeps the used fraction, rounded up to a window's part of a unit.
func (c *Counter) Edit(now int64, l limiter.Limit, q limiter.Queue) {
	c.level, c.at = c.drained(now), now
	from, to := c.capacity, l.Capacity()
	if c.algorithm == limiter.TokenBucket && from > 0 && to > 0 && from != to {
		c.level = ceil(c.level.Mul(c.level, big.NewInt(to)), from)
	}
	if to > 0 {
		c.capacity = to
	}
	c.limit, c.queue = l, q
}

// Count is how many units count at a time, rounded up.
func (c *Counter) Count(now int64) int64 {
	window := c.limit.Window.Microseconds()
	switch c.algorithm {
	case limiter.TokenBucket, limiter.LeakyBucket:
		return ceil(c.drained(now), window).Int64()
	case limiter.FixedWindow:
		return c.sum(start(now, window), now+1)
	case limiter.SlidingWindowLog:
		return c.sum(c.left(now)+1, math.MaxInt64)
	default:
		current := start(now, window)
		previous := big.NewInt(c.sum(current-window, current))
		overlap := big.NewInt(current + window - now)
		return ceil(previous.Mul(previous, overlap), window).Int64() + c.sum(current, now+1)
	}
}

// Fits tells whether a request of this cost would be admitted at a time.
func (c *Counter) Fits(now, cost int64) bool {
	if c.limit.Requests == 0 {
		return false
	}
	if c.algorithm == limiter.LeakyBucket {
		return c.Count(now) <= c.queue.MaxLength && c.Count(now+c.queue.MaxWait.Microseconds()) == 0
	}
	return c.Count(now)+cost <= c.limit.Capacity()
}

// Add counts units. A log takes at most as many entries as the limit, or as it holds; the newest stay.
func (c *Counter) Add(now, units int64) {
	switch c.algorithm {
	case limiter.TokenBucket, limiter.LeakyBucket:
		c.level, c.at = c.drained(now), now
		window := big.NewInt(c.limit.Window.Microseconds())
		c.level.Add(c.level, window.Mul(window, big.NewInt(units)))
	case limiter.SlidingWindowLog:
		bound := max(c.limit.Requests, c.Count(now))
		tick := c.tick()
		c.uses = append(c.uses, use{(now + tick - 1) / tick * tick, units})
		c.forget(c.Count(now)-bound, c.left(now))
	default:
		c.uses = append(c.uses, use{now, units})
	}
}

// tick is the resolution of a log: a window has at most 2^31.
func (c *Counter) tick() int64 { return (c.limit.Window.Microseconds() + 1<<31 - 1) >> 31 }

// left is the time at which entries of a log are a whole window old. Rounding only ever makes them stay longer.
func (c *Counter) left(now int64) int64 {
	tick := c.tick()
	return now/tick*tick - (c.limit.Window.Microseconds()+tick-1)/tick*tick
}

// forget takes units away from the oldest uses that are later than a time.
func (c *Counter) forget(units, later int64) {
	for i := range c.uses {
		if c.uses[i].at > later {
			n := min(max(units, 0), c.uses[i].units)
			c.uses[i].units -= n
			units -= n
		}
	}
}

// Reset is how long until nothing counts, if nobody calls.
func (c *Counter) Reset(now int64) int64 {
	return first(func(d int64) bool { return c.Count(now+d) == 0 })
}

// Retry is how long until a request of this cost fits, if nobody calls; false if it never does.
func (c *Counter) Retry(now, cost int64) (time.Duration, bool) {
	if c.limit.Requests == 0 || (c.algorithm != limiter.LeakyBucket && cost > c.limit.Capacity()) {
		return 0, false
	}
	return time.Duration(first(func(d int64) bool { return c.Fits(now+d, cost) })) * time.Microsecond, true
}

func (c *Counter) drained(now int64) *big.Int {
	level := big.NewInt(now - c.at)
	level.Mul(level, big.NewInt(-c.limit.Requests))
	level.Add(level, c.level)
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}

// sum counts the units of a span of time, no further than a counter counts.
func (c *Counter) sum(from, before int64) int64 {
	var n int64
	for _, u := range c.uses {
		if u.at >= from && u.at < before {
			n += u.units
		}
	}
	return min(n, limiter.MaxCost)
}

// start is when the window of a time began: windows are aligned to the epoch, whole weeks to Monday.
func start(now, window int64) int64 {
	const day = 24 * 3600 * 1_000_000
	var offset int64
	if window%(7*day) == 0 {
		offset = 4 * day
	}
	return (now-offset)/window*window + offset
}

// longest is the longest time that is told, since scripts count no further.
const longest = 1 << 52

// first is the smallest d ≥ 0 that holds, where all greater ones hold too.
func first(holds func(d int64) bool) int64 {
	low, high := int64(0), int64(1)
	for !holds(high) {
		if high == longest {
			return longest
		}
		low, high = high, high*2
	}
	if holds(0) {
		return 0
	}
	for low+1 < high {
		middle := (low + high) / 2
		if holds(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

func ceil(a *big.Int, b int64) *big.Int {
	q, m := new(big.Int).DivMod(a, big.NewInt(b), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}
