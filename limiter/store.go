package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Store keeps counters and decides on them. Implementations are safe for concurrent use.
type Store interface {
	// Decide takes all checks of one request in one atomic step and returns one Result each, in their order.
	// If a check that is not Shadow refuses, no other check is charged. An error means that nothing was decided.
	Decide(ctx context.Context, checks []Check) ([]Result, error)
}

// Bounds of what can be decided exactly.
const (
	MaxRequests    = 1<<31 - 1
	MaxLogRequests = 1_000_000 // SlidingWindowLog keeps an entry a unit
	MaxCost        = 1<<31 - 1
	MinWindow      = time.Millisecond
	MaxWindow      = 744 * time.Hour
	// maxDrain bounds how long a full bucket takes to empty: 2^52 µs, so that scripts count in doubles without loss.
	maxDrain = 1 << 52
)

// ErrRule tells that a Rule can't be decided exactly, or has a field without a meaning.
var ErrRule = errors.New("invalid rule")

// Capacity is how many units a limit admits at once.
func (l Limit) Capacity() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Requests
}

// Validate tells whether a rule can be decided exactly. Its error wraps ErrRule.
func (r *Rule) Validate() error {
	if len(r.Limits) == 0 {
		return fmt.Errorf("%w: no limits", ErrRule)
	}
	if r.Algorithm < TokenBucket || r.Algorithm > SlidingWindowCounter {
		return fmt.Errorf("%w: unknown algorithm %d", ErrRule, r.Algorithm)
	}
	if r.Algorithm == LeakyBucket && (len(r.Limits) != 1 || r.Queue.MaxLength < 1) {
		return fmt.Errorf("%w: LeakyBucket takes one limit and a queue", ErrRule)
	}
	if r.CountRejected && (r.Algorithm == TokenBucket || r.Algorithm == LeakyBucket) {
		return fmt.Errorf("%w: countRejected has no meaning with a bucket", ErrRule)
	}
	return r.validateLimits()
}

func (r *Rule) validateLimits() error {
	for i, l := range r.Limits {
		if err := r.validateLimit(l); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Limits[:i], func(o Limit) bool { return o.Window == l.Window }) {
			return fmt.Errorf("%w: two limits in a window of %s", ErrRule, l.Window)
		}
	}
	return nil
}

func (r *Rule) validateLimit(l Limit) error {
	switch {
	case r.Algorithm == SlidingWindowLog && l.Requests > MaxLogRequests:
		return fmt.Errorf("%w: SlidingWindowLog takes at most %d requests", ErrRule, MaxLogRequests)
	case l.Burst != 0 && r.Algorithm != TokenBucket:
		return fmt.Errorf("%w: burst has a meaning only with TokenBucket", ErrRule)
	}
	return l.validate()
}

func (l Limit) validate() error {
	switch {
	case l.Window < MinWindow || l.Window > MaxWindow || l.Window%time.Millisecond != 0:
		return fmt.Errorf("%w: window %s is not a whole number of milliseconds from %s to %s", ErrRule, l.Window, MinWindow, MaxWindow)
	case l.Requests < 0 || l.Requests > MaxRequests:
		return fmt.Errorf("%w: requests %d is not in 0…%d", ErrRule, l.Requests, MaxRequests)
	case l.Requests > l.Window.Microseconds():
		return fmt.Errorf("%w: more than one request a microsecond", ErrRule)
	case l.Burst < 0 || l.Burst > MaxRequests:
		return fmt.Errorf("%w: burst %d is not in 1…%d", ErrRule, l.Burst, MaxRequests)
	case l.Requests > 0 && l.Capacity()/l.Requests+1 > maxDrain/l.Window.Microseconds():
		return fmt.Errorf("%w: a burst of %d takes longer than 142 years to refill", ErrRule, l.Burst)
	}
	return nil
}
