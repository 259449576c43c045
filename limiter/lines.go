package limiter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// Lines are the callers of this process that wait for their departure from a LeakyBucket. A caller that leaves hands its
// departure to the one behind it, and so on; the last departure of the line goes back to the store, if nobody has
// reserved one after it.
type Lines struct {
	engine *Engine
	clock  clock.Clock

	mu    sync.Mutex
	lines map[queue]*line
}

// queue is one LeakyBucket of one caller's key. An edited rule begins a new one.
type queue struct {
	rule *Rule
	key  string
}

// NewLines returns no callers.
func NewLines(e *Engine, c clock.Clock) *Lines {
	return &Lines{engine: e, clock: c, lines: map[queue]*line{}}
}

// Wait holds a request that may pass until it may depart from every queue that it must pass; shadows hold nobody. The
// error is the context's.
func (l *Lines) Wait(ctx context.Context, checks []Check, results []Result) error {
	now := l.clock.Now()
	var places []*place
	for i, c := range checks {
		if !c.Rule.Shadow && results[i].Delay > 0 {
			places = append(places, l.enter(departure{now.Add(results[i].Delay), c, results[i]}))
		}
	}
	for i, p := range places {
		if err := l.hold(ctx, p); err != nil {
			l.leave(places[i:])
			return err
		}
	}
	return nil
}

// hold returns at the place's departure, which may come earlier than it was at first.
func (l *Lines) hold(ctx context.Context, p *place) error {
	for {
		l.mu.Lock()
		wait := p.at.Sub(l.clock.Now())
		l.mu.Unlock()
		timer := l.clock.NewTimer(wait)
		select {
		case <-timer.C():
			l.depart(p)
			return nil
		case <-p.moved:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func (l *Lines) enter(d departure) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := queue{d.check.Rule, d.check.Key}
	if l.lines[q] == nil {
		l.lines[q] = &line{}
	}
	return l.lines[q].enter(d)
}

func (l *Lines) depart(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(p, (*line).depart)
}

func (l *Lines) leave(places []*place) {
	for _, p := range places {
		var free *departure
		l.mu.Lock()
		l.remove(p, func(of *line, p *place) { free = of.leave(p) })
		l.mu.Unlock()
		if free != nil {
			l.engine.giveBack([]Check{free.check}, []Result{free.result}, false)
		}
	}
}

func (l *Lines) remove(p *place, how func(*line, *place)) {
	q := queue{p.check.Rule, p.check.Key}
	how(l.lines[q], p)
	if len(l.lines[q].places) == 0 {
		delete(l.lines, q)
	}
}

// departure is what was reserved.
type departure struct {
	at     time.Time
	check  Check
	result Result
}

// place is a caller and the departure that it has now.
type place struct {
	departure
	moved chan struct{}
}

// line is callers in order of departure.
type line struct{ places []*place }

func (l *line) enter(d departure) *place {
	p := &place{d, make(chan struct{}, 1)}
	i, _ := slices.BinarySearchFunc(l.places, d.at, func(p *place, at time.Time) int {
		if p.at.After(at) {
			return 1
		}
		return -1
	})
	l.places = slices.Insert(l.places, i, p)
	return p
}

func (l *line) depart(p *place) {
	l.places = slices.DeleteFunc(l.places, func(o *place) bool { return o == p })
}

// leave moves those behind the caller forward by one place and returns the departure that is left over. Departures of
// different costs take different times, so that nobody moves beyond a caller of another cost; nothing is left over then.
func (l *line) leave(p *place) *departure {
	i := slices.Index(l.places, p)
	free := p.departure
	l.places = slices.Delete(l.places, i, i+1)
	for _, next := range l.places[i:] {
		if next.check.Cost != free.check.Cost {
			return nil
		}
		next.departure, free = free, next.departure
		select {
		case next.moved <- struct{}{}:
		default: // it will look anyway
		}
	}
	return &free
}
