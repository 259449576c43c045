package limiter

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// process is a line, and who waits in it.
type process struct {
	line   line
	places []*place
}

// TestNoDepartureIsEverBookedTwice lets callers of two processes reserve, leave and depart in any order: what they have
// reserved stays at least an interval apart, and those of one process stay in order of arrival.
func TestNoDepartureIsEverBookedTwice(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1_000_000, 0)
		free := now // the next free departure, as the store has it
		processes := []*process{{}, {}}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			p := rapid.SampledFrom(processes).Draw(rt, "process")
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0, 1:
				at := now
				if free.After(now) {
					at = free
				}
				free = at.Add(interval)
				p.places = append(p.places, p.line.enter(departure{at: at, check: Check{Cost: 1}}))
			case 2:
				if len(p.places) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(p.places)-1).Draw(rt, "who")
				left := p.line.leave(p.places[i])
				p.places = slices.Delete(p.places, i, i+1)
				if left != nil && left.at.Add(interval).Equal(free) {
					free = left.at // by compare-and-set
				}
			default:
				now = now.Add(time.Duration(rapid.Int64Range(0, 3000).Draw(rt, "pause")) * time.Millisecond)
				for _, q := range processes {
					q.departAll(now)
				}
			}
			checkBookings(rt, processes, free, interval)
		}
	})
}

func (p *process) departAll(now time.Time) {
	for len(p.places) > 0 && !p.places[0].at.After(now) {
		p.line.depart(p.places[0])
		p.places = p.places[1:]
	}
}

func checkBookings(rt *rapid.T, processes []*process, free time.Time, interval time.Duration) {
	var booked []time.Time
	for _, p := range processes {
		for i, place := range p.places {
			booked = append(booked, place.at)
			if i > 0 && !place.at.After(p.places[i-1].at) {
				rt.Fatalf("caller %d departs before the one that came before it", i)
			}
		}
	}
	slices.SortFunc(booked, time.Time.Compare)
	booked = append(booked, free)
	for i := range booked[1:] {
		if booked[i+1].Sub(booked[i]) < interval {
			rt.Fatalf("booked twice: %s and %s", booked[i], booked[i+1])
		}
	}
}
