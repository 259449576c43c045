package lease

import (
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// Result tells how things stand after a request of a cost was granted or refused by what is held. The store's last answer
// is up to a lease's life old. At is the number of the round, for GiveBack.
func (h *Holder) Result(now time.Time, allowed bool, cost int64) limiter.Result {
	r := limiter.Result{Allowed: allowed, Source: limiter.FromLease, At: h.round, Limits: make([]limiter.State, len(h.rule.Limits))}
	for i, l := range h.rule.Limits {
		s := h.standing(now, i)
		if !allowed {
			s.RetryAfter = h.comeBack(now, l, s, max(1, cost))
			s.Allowed = s.RetryAfter == 0
			r.RetryAfter = max(r.RetryAfter, s.RetryAfter)
		}
		r.Limits[i] = s
	}
	return r
}

// Answer tells how things stand after the store decided a request of a cost itself.
func (h *Holder) Answer(now time.Time, allowed bool, cost int64) limiter.Result {
	r := h.Result(now, allowed, cost)
	r.Source, r.At = limiter.FromStore, h.storeNow
	return r
}

// standing is a limit's state by the last answer, with what is held as free.
func (h *Holder) standing(now time.Time, i int) limiter.State {
	s := limiter.State{Allowed: true, Limit: h.rule.Limits[i].Requests}
	if i >= len(h.limits) {
		return s
	}
	last, passed := h.limits[i], now.Sub(h.received)
	s.Remaining = last.Remaining + h.units
	s.Current = last.Current - h.units
	s.ResetAfter = max(0, last.ResetAfter-passed)
	s.RetryAfter = 0
	return s
}

// comeBack is when a refused cost is sure to be admitted if nobody else calls; 0 if this limit has room for it.
func (h *Holder) comeBack(now time.Time, l limiter.Limit, s limiter.State, cost int64) time.Duration {
	switch {
	case l.Requests == 0 || cost > l.Capacity():
		return limiter.Never
	case !h.possible(cost):
		return 0
	case cost <= h.refused:
		return max(h.retry()-now.Sub(h.received), h.pace.wait(now, cost), time.Microsecond)
	case cost <= s.Remaining:
		return max(h.pace.wait(now, cost), time.Microsecond)
	default:
		return max(s.ResetAfter, h.pace.wait(now, cost), time.Microsecond)
	}
}
