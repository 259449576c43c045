package memory

import "slices"

// tickOf is the resolution of a log: a window has at most 2^31 ticks, so that an entry takes four bytes.
// Windows up to 35 minutes are kept to the microsecond, the longest to 1.25 ms.
func tickOf(window int64) int64 { return ceilDiv(window, 1<<31) }

// slidingLog keeps a stamp for each unit. Stamps are rounded up and the window is measured in ticks rounded up,
// so that rounding only ever refuses. Entries leave by age only.
type slidingLog struct {
	now    int64
	tick   int64
	stamps []int64 // in ticks, ascending
	terms  terms
}

func (l *slidingLog) advance(now int64, t terms) {
	l.terms, l.tick = t, tickOf(t.window)
	l.now = now
	if n := len(l.stamps); n > 0 {
		l.now = max(now, (l.stamps[n-1]-1)*l.tick+1) // the earliest time that has this stamp
	}
	oldest := l.now/l.tick - l.span()
	first, _ := slices.BinarySearch(l.stamps, oldest+1)
	l.stamps = append(l.stamps[:0], l.stamps[first:]...)
}

func (l *slidingLog) span() int64 { return ceilDiv(l.terms.window, l.tick) }

func (l *slidingLog) fits(cost int64) bool { return int64(len(l.stamps))+cost <= l.terms.requests }

// add appends entries; beyond the limit, new entries take the places of the oldest.
func (l *slidingLog) add(cost int64) {
	bound := max(l.terms.requests, int64(len(l.stamps)))
	stamp := ceilDiv(l.now, l.tick)
	for range min(cost, bound) {
		l.stamps = append(l.stamps, stamp)
	}
	if extra := int64(len(l.stamps)) - bound; extra > 0 {
		l.stamps = append(l.stamps[:0], l.stamps[extra:]...)
	}
}

func (l *slidingLog) standing(cost int64) standing {
	live := int64(len(l.stamps))
	s := standing{current: live, remaining: max(0, l.terms.requests-live), retry: never}
	if live > 0 {
		s.reset = l.leaves(live - 1)
	}
	if cost <= l.terms.requests && l.terms.requests > 0 {
		s.retry = 0
		if over := live + cost - l.terms.requests; over > 0 {
			s.retry = l.leaves(over - 1)
		}
	}
	return s
}

// leaves is how long the i-th oldest entry still counts.
func (l *slidingLog) leaves(i int64) int64 { return (l.stamps[i]+l.span())*l.tick - l.now }

// takeBack: entries of one stamp are alike, as many go as were added then.
func (l *slidingLog) takeBack(now int64, t terms, cost, at int64) {
	l.advance(now, t)
	first, _ := slices.BinarySearch(l.stamps, ceilDiv(at, l.tick))
	last := first
	for last < len(l.stamps) && int64(last-first) < cost && l.stamps[last] == ceilDiv(at, l.tick) {
		last++
	}
	l.stamps = slices.Delete(l.stamps, first, last)
}

func (l *slidingLog) expires() int64 {
	if len(l.stamps) == 0 {
		return l.now
	}
	return (l.stamps[len(l.stamps)-1] + l.span()) * l.tick
}
