package limiter

import "time"

// longest is the longest window of a share, in milliseconds: a century, so that no sum overflows.
const longest = 100 * 366 * 24 * 3600 * 1000

// ForShare returns the part of a rule that one process enforces without a store. The parts of all processes sum to
// exactly the rule's requests; where there are fewer requests than processes, each admits one in a window that is
// longer by as much.
func (r *Rule) ForShare(s Share) *Rule {
	part := *r
	part.Limits = make([]Limit, len(r.Limits))
	for i, l := range r.Limits {
		part.Limits[i] = l.part(s)
	}
	part.Queue.MaxLength = max(1, split(r.Queue.MaxLength, s))
	part.CountRejected = false
	return &part
}

func (l Limit) part(s Share) Limit {
	if s.Of <= 1 || l.Requests == 0 {
		return l
	}
	part := Limit{Requests: split(l.Requests, s), Window: l.Window}
	if l.Requests < int64(s.Of) {
		longer := (l.Window.Milliseconds()*int64(s.Of) + l.Requests - 1) / l.Requests
		part.Requests, part.Window = 1, time.Duration(min(longer, longest))*time.Millisecond
	}
	if l.Burst > 0 {
		part.Burst = max(1, split(l.Burst, s))
	}
	return part
}

// split divides n so that the shares of all ranks sum to n.
func split(n int64, s Share) int64 {
	if s.Of <= 1 {
		return n
	}
	share := n / int64(s.Of)
	if int64(s.Rank) < n%int64(s.Of) {
		share++
	}
	return share
}
