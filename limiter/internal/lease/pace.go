package lease

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

const (
	shortest = 50 * time.Millisecond // lease
	longest  = time.Second
	// lives is how many lease lives make the time in which a limit's capacity comes back, where that is possible.
	lives = 200
	// fewest lives that make leasing worth while.
	fewest = 5
	// slow is how many requests must come in a lease's life for anything to be leased.
	slow = 2
	// growth of a slice that did not last for that part of its life.
	growth = 4
	// slack is the part by which a clock may run slower than the store's.
	slack = 64
	// claims is how many claims a holder makes in a lease's life on average, and reserve how many it may save up.
	claims  = 2.4
	reserve = 6
)

// Life is how long the leases of a rule last; 0 = it is not leased, but decided by the store: LeakyBucket, because its
// departures are reserved for callers that wait and not in advance; CountRejected, because each refusal must reach the
// store; and limits whose capacity comes back in less than a few lease lives.
func Life(r *limiter.Rule) time.Duration {
	if r.Algorithm == limiter.LeakyBucket || r.CountRejected {
		return 0
	}
	life := longest
	for _, l := range r.Limits {
		back := refill(l)
		if back < fewest*shortest {
			return 0
		}
		life = min(life, max(back/lives, shortest))
	}
	return life
}

// refill is how long the whole capacity of a limit takes to come back.
func refill(l limiter.Limit) time.Duration {
	if l.Requests == 0 {
		return l.Window
	}
	return time.Duration(min(float64(l.Window)*float64(l.Capacity())/float64(l.Requests), float64(limiter.MaxWindow)))
}

// pace bounds how often the store is asked, whatever the load.
type pace struct {
	life   time.Duration
	spent  float64 // claims that were made and not yet earned back
	at     time.Time
	paused time.Time // requests of at least the cost make no claim before then
	cost   int64
}

func (p *pace) owed(now time.Time) float64 {
	return max(0, p.spent-claims*float64(now.Sub(p.at))/float64(p.life))
}

func (p *pace) spend(now time.Time) { p.spent, p.at = p.owed(now)+1, now }

func (p *pace) allows(now time.Time, cost int64) bool {
	return p.owed(now) <= reserve-1 && (cost < p.cost || !now.Before(p.paused))
}

// pause keeps requests from asking for what the store has just refused, unless few claims were made lately.
func (p *pace) pause(now time.Time, cost int64, most time.Duration, random *rand.Rand) {
	if p.owed(now) < reserve/2 {
		return
	}
	if now.Before(p.paused) {
		p.cost = min(p.cost, cost)
		return
	}
	length := p.life*2/5 + time.Duration(random.Int64N(int64(p.life/5)))
	p.paused, p.cost = now.Add(min(length, most)), cost
}

// wait is how long until a claim is allowed.
func (p *pace) wait(now time.Time, cost int64) time.Duration {
	wait := time.Duration((p.owed(now) - (reserve - 1)) / claims * float64(p.life))
	if cost >= p.cost {
		wait = max(wait, p.paused.Sub(now))
	}
	return max(0, wait)
}

// demand measures how much is asked for in a lease's life.
type demand struct {
	life            time.Duration
	start           time.Time // of the present span
	present, former amount    // in it, and in the span before
	last            time.Time
}

type amount struct{ units, requests int64 }

func (d *demand) add(now time.Time, units int64) {
	d.turn(now)
	d.last = now
	d.present.units = min(d.present.units+units, limiter.MaxCost)
	d.present.requests++
}

func (d *demand) turn(now time.Time) {
	switch passed := now.Sub(d.start); {
	case passed >= 2*d.life:
		d.start, d.former, d.present = now, amount{}, amount{}
	case passed >= d.life:
		d.start, d.former, d.present = d.start.Add(d.life), d.present, amount{}
	}
}

// units that are needed for a lease's life; 0 for a slow key.
func (d *demand) units(now time.Time) int64 {
	d.turn(now)
	if max(d.present.requests, d.former.requests) < slow {
		return 0
	}
	return max(d.present.units, d.former.units)
}
