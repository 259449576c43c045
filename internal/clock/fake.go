package clock

import (
	"sync"
	"time"
)

// Fake is a Clock that moves only when told to.
type Fake struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	waits  sync.Cond
}

// NewFake returns a clock that stands at start.
func NewFake(start time.Time) *Fake {
	f := &Fake{now: start, timers: map[*fakeTimer]struct{}{}}
	f.waits.L = &f.mu
	return f
}

// Now is where the clock stands.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// NewTimer fires when the clock has been advanced by d.
func (f *Fake) NewTimer(d time.Duration) Timer {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTimer{clock: f, at: f.now.Add(d), c: make(chan time.Time, 1)}
	if d <= 0 {
		t.c <- f.now
		return t
	}
	f.timers[t] = struct{}{}
	f.waits.Broadcast()
	return t
}

// Advance moves the clock by d and fires the timers that are due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	for t := range f.timers {
		if !t.at.After(f.now) {
			delete(f.timers, t)
			t.c <- f.now
		}
	}
}

// AwaitTimers blocks until at least n timers wait, so that a test knows its callers sleep before it advances the clock.
func (f *Fake) AwaitTimers(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.timers) < n {
		f.waits.Wait()
	}
}

type fakeTimer struct {
	clock *Fake
	at    time.Time
	c     chan time.Time
}

func (t *fakeTimer) C() <-chan time.Time { return t.c }

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, waiting := t.clock.timers[t]
	delete(t.clock.timers, t)
	return waiting
}
