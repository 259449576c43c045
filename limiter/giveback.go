package limiter

import "time"

// Returner is a Store that takes back what a request was charged, as far as that can never admit more than if the
// request had not come. It may do so later, or not at all.
type Returner interface {
	// GiveBack takes checks and the results of deciding them; all were charged.
	GiveBack(checks []Check, results []Result)
}

// Receipt names a charge to those who take it back: the time of the decision, or in a LeakyBucket the end of the backlog
// as the decision left it.
func Receipt(c *Check, r *Result) int64 {
	if c.Rule.Algorithm == LeakyBucket {
		return r.At + int64(r.Limits[0].ResetAfter/time.Microsecond)
	}
	return r.At
}

// GiveBack returns the charges of a request that does not pass to the store that decided it, and mends the results.
// Shadow rules keep their charges, unless the request is decided anew; so do rules that count refused requests.
func GiveBack(s Store, checks []Check, results []Result, anew bool) {
	returner, able := s.(Returner)
	if !able {
		return
	}
	var charged []Check
	var receipts []Result
	for i, c := range checks {
		if !results[i].Allowed || c.Cost == 0 || c.Rule.CountRejected || (c.Rule.Shadow && !anew) {
			continue
		}
		charged, receipts = append(charged, c), append(receipts, results[i])
		results[i].uncharge(c.Cost)
	}
	if len(charged) > 0 {
		returner.GiveBack(charged, receipts)
	}
}

func (r *Result) uncharge(cost int64) {
	limits := make([]State, len(r.Limits))
	for i, s := range r.Limits {
		s.Remaining += cost
		s.Current -= cost
		limits[i] = s
	}
	r.Limits = limits
}
