// Package lease decides requests for one key by units that are leased from a store. It knows neither stores nor
// goroutines nor the time: whoever uses it carries claims to the store and the answers back.
package lease

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// Verdict is what becomes of a request.
type Verdict uint8

// The verdicts.
const (
	Granted Verdict = iota + 1
	Refused
	Waits // for the answer to a claim that asks for it
)

// Holder is what one process holds for one rule and key. It is not safe for concurrent use. Times given to it must be
// monotonic; they are compared with each other only.
type Holder struct {
	rule   *limiter.Rule
	key    string
	life   time.Duration
	random *rand.Rand

	id       int64     // in the store; 0 = the store knows of nothing that could be reported
	units    int64     // that may be used until the lease ends
	used     int64     // of those leased, since the last claim
	lastUse  time.Time // of a leased unit
	sent     time.Time // when the claim was sent that got the lease
	received time.Time // when it was answered
	storeNow int64     // the store's time in the answer
	slice    int64     // units after the answer
	limits   []limiter.State
	refused  int64 // the largest cost that there was no room for; limits say when to come back with it
	round    int64 // number of claims

	flying bool
	want   int64 // of the claim under way
	asked  []limiter.Ask

	pace   pace
	demand demand
}

// New returns a Holder of nothing. The rule must have a Life.
func New(r *limiter.Rule, key string, seed uint64) *Holder {
	life := Life(r)
	return &Holder{
		rule: r, key: key, life: life, random: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // it only has to differ
		pace: pace{life: life}, demand: demand{life: life},
	}
}

// Rule is what the leases are granted under.
func (h *Holder) Rule() *limiter.Rule { return h.rule }

// Take decides a request by what is held; one that waits is to be put to the store with the next claim.
func (h *Holder) Take(now time.Time, cost int64) Verdict {
	h.demand.add(now, max(1, cost))
	return h.Retake(now, cost)
}

// Retake decides a request that has waited without being put to the store.
func (h *Holder) Retake(now time.Time, cost int64) Verdict {
	need := max(1, cost)
	switch {
	case !h.possible(need):
		return Refused
	case h.Held(now) >= need:
		h.use(now, cost)
		return Granted
	case !h.flying && !h.pace.allows(now, need):
		return Refused
	default:
		return Waits
	}
}

func (h *Holder) possible(cost int64) bool {
	for _, l := range h.rule.Limits {
		if l.Requests == 0 || cost > l.Capacity() {
			return false
		}
	}
	return true
}

func (h *Holder) use(now time.Time, cost int64) {
	if cost == 0 {
		return
	}
	h.units -= cost
	h.used += cost
	h.lastUse = now
}

// GiveBack takes back units that were taken in a round and not used. What has been reported since stays used.
func (h *Holder) GiveBack(now time.Time, cost, round int64) {
	if h.round == round && h.Held(now) >= 0 && h.used >= cost {
		h.units += cost
		h.used -= cost
	}
}

// Held is how many units may be used now. It forgets a lease that has ended: the store charges all of it.
func (h *Holder) Held(now time.Time) int64 {
	if h.age(now) >= h.life {
		h.units, h.used, h.id = 0, 0, 0
	}
	return h.units
}

// age is how much time has passed for the store since it granted the lease, or more: it is counted from when the claim was
// sent, with some slack for clocks that don't run alike.
func (h *Holder) age(now time.Time) time.Duration {
	age := now.Sub(h.sent)
	return age + age/slack
}

// Due tells whether it is time to claim before the units run out.
func (h *Holder) Due(now time.Time) bool {
	return !h.flying && h.Held(now)*10 <= h.slice*3 && h.target(now) > 0 && h.pace.allows(now, 1)
}

// target is how many units are to last for a lease's life; 0 for a slow key. A slice that did not last is followed by one
// that is several times larger.
func (h *Holder) target(now time.Time) int64 {
	target := h.demand.units(now)
	if target > 0 && h.slice > 0 && h.slice == h.want && now.Sub(h.sent) < h.life/growth {
		target = max(target, h.slice*growth)
	}
	return target
}

// Holds tells whether there is something that the store should hear of.
func (h *Holder) Holds(now time.Time) bool {
	return h.Held(now) > 0 && h.id != 0 || h.used > 0
}

// Flying tells whether a claim is under way.
func (h *Holder) Flying() bool { return h.flying }

// Claim is what to put to the store now, for callers that wait. Its answer goes to Settle, its failure to Fail; until
// then there must be no other claim. Too few units for those who wait go back, for the store to decide with all there are.
func (h *Holder) Claim(now time.Time, asks []limiter.Ask) *limiter.Claim {
	target, keep := min(h.target(now), limiter.MaxCost), h.Held(now)
	if len(asks) > 0 {
		keep = 0
	}
	return h.claim(now, asks, keep, max(0, target-keep))
}

// Return is a claim that gives all back.
func (h *Holder) Return(now time.Time) *limiter.Claim { return h.claim(now, nil, 0, 0) }

func (h *Holder) claim(now time.Time, asks []limiter.Ask, keep, want int64) *limiter.Claim {
	c := &limiter.Claim{Rule: h.rule, Key: h.key, Asks: asks, Want: want, Life: h.life}
	if h.id != 0 {
		c.Used, c.Kept = h.used, keep
		if h.used > 0 {
			c.LastUse = h.storeNow + h.age(h.lastUse).Microseconds()
		}
		h.units = keep
	} else {
		h.id = 1 + h.random.Int64N(1<<53-1)
	}
	c.Holder, h.used = h.id, 0
	h.flying, h.want, h.asked = true, want, asks
	h.round++
	h.pace.spend(now)
	return c
}

// Settle takes the answer to the claim that was sent at a time.
func (h *Holder) Settle(sent, now time.Time, g limiter.Grant) {
	h.flying = false
	if !g.Kept {
		h.units, h.used = 0, 0
	}
	h.units += g.Units
	h.slice, h.limits = h.units, g.Limits
	h.sent, h.received, h.storeNow = sent, now, g.Now
	h.Held(now)
	h.refused = 0
	if h.retry() > 0 {
		h.refused = 1
	}
	for i, a := range h.asked {
		if g.Served[i] < a.Callers {
			h.refused = max(h.refused, a.Cost)
			h.pace.pause(now, max(1, a.Cost), h.retry(), h.random)
		}
	}
}

// retry is how long after the last answer the largest cost that it refused may come again.
func (h *Holder) retry() time.Duration {
	var longest time.Duration
	for _, l := range h.limits {
		longest = max(longest, l.RetryAfter)
	}
	return longest
}

// Fail tells that the claim may have been done or not. What is held may be used to its end, but is not spoken of again:
// the store charges all of it.
func (h *Holder) Fail() {
	h.flying = false
	h.id, h.used = 0, 0
}

// Tend looks after what is held while nobody calls. It returns a claim if one is due, else how long to leave the holder
// alone; 0 = it holds nothing and nobody has called for long: it can be forgotten.
func (h *Holder) Tend(now time.Time) (*limiter.Claim, time.Duration) {
	switch held := h.Held(now); {
	case h.flying:
		return nil, h.life / 4
	case h.Holds(now):
		if rest := h.life*4/5 - h.age(now); rest > 0 {
			return nil, rest
		}
		keep := min(held, h.demand.units(now))
		if now.Sub(h.lastUse) > h.life/2 {
			keep = 0
		}
		return h.claim(now, nil, keep, 0), 0
	case held > 0, now.Sub(h.demand.last) < 4*h.life:
		return nil, h.life / 2
	default:
		return nil, 0
	}
}
