package hybrid

import (
	"container/heap"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// agenda says when to look after which entry.
type agenda struct {
	clock clock.Clock
	mu    sync.Mutex
	due   dates
	news  chan struct{} // the first date has changed
	ended chan struct{}
	// closed is set with ended.
	closed bool
}

type date struct {
	at    time.Time
	entry *entry
}

func newAgenda(c clock.Clock) *agenda {
	return &agenda{clock: c, news: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (a *agenda) add(e *entry, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	heap.Push(&a.due, date{at, e})
	if a.due[0].entry == e {
		select {
		case a.news <- struct{}{}:
		default:
		}
	}
}

func (a *agenda) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		close(a.ended)
	}
}

// run looks after entries at their dates, until the agenda is closed.
func (a *agenda) run(look func(*entry) time.Duration) {
	for {
		e, wait := a.next()
		if e == nil {
			if !a.sleep(wait) {
				return
			}
			continue
		}
		if again := look(e); again > 0 {
			a.add(e, a.clock.Now().Add(again))
		}
	}
}

// next is the entry that is due, or how long there is none.
func (a *agenda) next() (*entry, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.due) == 0 {
		return nil, time.Hour
	}
	if wait := a.due[0].at.Sub(a.clock.Now()); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&a.due).(date).entry, 0 //nolint:forcetypeassert // what a heap of dates holds
}

func (a *agenda) sleep(wait time.Duration) bool {
	timer := a.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-a.news:
		return true
	case <-a.ended:
		return false
	}
}

type dates []date

func (d *dates) Len() int           { return len(*d) }
func (d *dates) Less(i, j int) bool { return (*d)[i].at.Before((*d)[j].at) }
func (d *dates) Swap(i, j int)      { (*d)[i], (*d)[j] = (*d)[j], (*d)[i] }
func (d *dates) Push(x any)         { *d = append(*d, x.(date)) } //nolint:forcetypeassert // see next
func (d *dates) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = date{}
	*d = (*d)[:last]
	return x
}
