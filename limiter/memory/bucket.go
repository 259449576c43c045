package memory

// level is an amount of units that drains at requests a window: whole + part/window units at the time at.
// It never rounds: the part carries the remainder of every division. An edit of requests takes effect with
// the first call that knows of it.
type level struct {
	at, whole, part, requests int64
}

// advance lets the level sink until now, and goes on with the rate of t.
func (v *level) advance(now int64, t terms) {
	if v.at == 0 {
		v.at, v.requests = now, t.requests
	}
	v.drain(now, t.window)
	v.requests = t.requests
}

func (v *level) drain(now, window int64) {
	if now <= v.at {
		return
	}
	elapsed := now - v.at
	v.at = now
	windows, rest := elapsed/window, elapsed%window
	if windows > 0 && v.whole < windows*v.requests { // at most elapsed: no more than one request a µs
		v.whole, v.part = 0, 0
		return
	}
	units, part := muldiv(rest, v.requests, window)
	v.whole -= windows*v.requests + units
	v.part -= part
	if v.part < 0 {
		v.part += window
		v.whole--
	}
	if v.whole < 0 {
		v.whole, v.part = 0, 0
	}
}

// rescale turns the level of a bucket of capacity from into the same fraction of one of capacity to, rounded up.
func (v *level) rescale(from, to, window int64) {
	whole, rest := muldiv(v.whole, to, from)
	carried, fine := muldiv(v.part, to, window)
	rest += carried
	whole += rest / from
	part, rem := muldiv(rest%from, window, from)
	part += ceilDiv(rem+fine, from)
	v.whole, v.part = whole+part/window, part%window
}

// lower takes units away, if any is left to take.
func (v *level) lower(units int64) {
	if units <= 0 {
		return
	}
	v.whole -= units
	if v.whole < 0 {
		v.whole, v.part = 0, 0
	}
}

// longest is the longest time that scripts count without loss, in microseconds: 142 years.
const longest = 1 << 52

// until returns how long the level takes to sink to target whole units, rounded up; no longer than can be counted.
func (v *level) until(target int64, t terms) int64 {
	above := v.whole - target
	if above < 0 || (above == 0 && v.part == 0) {
		return 0
	}
	windows := above / t.requests
	if windows >= longest/t.window {
		return longest
	}
	wait, rem := muldiv(above%t.requests, t.window, t.requests)
	return windows*t.window + wait + ceilDiv(rem+v.part, t.requests)
}

// ceil is the level in whole units, rounded up.
func (v *level) ceil() int64 {
	if v.part > 0 {
		return v.whole + 1
	}
	return v.whole
}

// tokenBucket is the generic cell rate algorithm (ITU-T I.371, continuous-state form): used units drain at
// requests a window, and a request fits while used + cost ≤ capacity.
type tokenBucket struct {
	used     level
	capacity int64 // under which used was counted
	terms    terms
}

func (b *tokenBucket) advance(now int64, t terms) {
	b.terms = t
	b.used.advance(now, t)
	if b.capacity > 0 && t.capacity > 0 && b.capacity != t.capacity {
		b.used.rescale(b.capacity, t.capacity, t.window)
	}
	if t.capacity > 0 {
		b.capacity = t.capacity
	}
}

func (b *tokenBucket) fits(cost int64) bool {
	return b.terms.requests > 0 && b.used.ceil()+cost <= b.terms.capacity
}

func (b *tokenBucket) add(cost int64) { b.used.whole += cost }

func (b *tokenBucket) standing(cost int64) standing {
	s := standing{current: b.used.ceil(), retry: never}
	if b.terms.requests == 0 {
		return s
	}
	s.remaining = max(0, b.terms.capacity-s.current)
	s.reset = b.used.until(0, b.terms)
	if cost <= b.terms.capacity {
		s.retry = b.used.until(b.terms.capacity-cost, b.terms)
	}
	return s
}

// takeBack: what has drained since might have drained other units, had this one not been there. Only the rest goes.
func (b *tokenBucket) takeBack(now int64, t terms, cost, at int64) {
	if t.requests == 0 || t.requests != b.used.requests || t.capacity != b.capacity {
		return // edited since
	}
	b.advance(now, t)
	elapsed := max(0, now-at)
	if elapsed/t.window*t.requests >= cost {
		return
	}
	drained, rem := muldiv(elapsed, t.requests, t.window)
	if rem > 0 {
		drained++
	}
	b.used.lower(cost - drained)
}

func (b *tokenBucket) expires() int64 {
	if b.terms.requests == 0 {
		return b.used.at + b.terms.window
	}
	return b.used.at + b.used.until(0, b.terms)
}

// leakyBucket lets one unit out each window/requests and makes callers wait for their turn: the level is
// what has reserved a departure and has not departed.
type leakyBucket struct {
	backlog level
	terms   terms
}

func (b *leakyBucket) advance(now int64, t terms) {
	b.terms = t
	b.backlog.advance(now, t)
}

// fits: the caller departs when the backlog is gone. Those who wait then, the caller included, are the backlog's units.
func (b *leakyBucket) fits(int64) bool {
	return b.terms.requests > 0 && b.backlog.ceil() <= b.terms.queue && b.backlog.until(0, b.terms) <= b.terms.maxWait
}

func (b *leakyBucket) add(cost int64) { b.backlog.whole += cost }

func (b *leakyBucket) standing(int64) standing {
	s := standing{current: b.backlog.ceil(), retry: never}
	if b.terms.requests == 0 {
		return s
	}
	s.remaining = max(0, b.terms.queue+1-s.current)
	s.reset = b.backlog.until(0, b.terms)
	s.retry = max(b.backlog.until(b.terms.queue, b.terms), s.reset-b.terms.maxWait, 0)
	return s
}

// takeBack: only the last reservation can go without moving others. It is the last if the backlog ends when it did then.
func (b *leakyBucket) takeBack(now int64, t terms, cost, ending int64) {
	if t.requests == 0 || t.requests != b.backlog.requests {
		return // edited since
	}
	b.advance(now, t)
	if b.backlog.at+b.backlog.until(0, t) == ending {
		b.backlog.lower(cost)
	}
}

func (b *leakyBucket) expires() int64 {
	if b.terms.requests == 0 {
		return b.backlog.at + b.terms.window
	}
	return b.backlog.at + b.backlog.until(0, b.terms)
}
