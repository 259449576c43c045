package redis

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
)

const (
	// maxRefusals bounds what is remembered.
	maxRefusals = 8192
	// rememberFor bounds how long, so that a counter that was reset in the server is asked for again soon.
	rememberFor = time.Second
	// flushEvery is how long attempts that are to be counted stay in this process.
	flushEvery = 100 * time.Millisecond
)

// refusals remembers what the server refused, so that whoever asks again too early is refused at once. A refusal holds
// for exactly the same question, since another cost has another retry-after, until its retry-after has passed since the
// call was sent or the same caller is admitted something. An edit is another Rule, and so another question.
type refusals struct {
	clock clock.Clock
	count func(checks []limiter.Check, attempts int) // sends attempts to the server

	mu         sync.Mutex
	known      map[caller]*refusal // by the first check
	generation int                 // of the connection
	flushing   bool
	closed     chan struct{}
	flusher    sync.WaitGroup
}

// caller is who asks, by the rule that is asked first.
type caller struct {
	rule *limiter.Rule
	key  string
}

func callerOf(checks []limiter.Check) caller { return caller{checks[0].Rule, checks[0].Key} }

type refusal struct {
	checks   []limiter.Check
	results  []limiter.Result
	received time.Time
	until    time.Time
	attempts int // that the server has not counted
}

func newRefusals(c clock.Clock, count func([]limiter.Check, int)) *refusals {
	return &refusals{clock: c, count: count, known: map[caller]*refusal{}, closed: make(chan struct{})}
}

// find returns what the server would say now to a request that it refused before.
func (f *refusals) find(checks []limiter.Check) ([]limiter.Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.known[callerOf(checks)]
	if r == nil || !slices.Equal(r.checks, checks) {
		return nil, false
	}
	now := f.clock.Now()
	if !now.Before(r.until) {
		f.drop(r)
		return nil, false
	}
	if checks[0].Rule.CountRejected && checks[0].Cost <= smallest(checks[0].Rule.Limits) {
		r.attempts++
		f.flushSoon()
	}
	return r.tell(now), true
}

func smallest(limits []limiter.Limit) int64 {
	return slices.MinFunc(limits, func(a, b limiter.Limit) int { return int(a.Requests - b.Requests) }).Requests
}

// put remembers a refusal, if it may be; asked is the first of the calls that it took.
func (f *refusals) put(checks []limiter.Check, results []limiter.Result, asked *call) {
	wait := lasts(checks, results)
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.known[callerOf(checks)]; old != nil {
		f.drop(old)
	}
	if wait <= 0 || asked.connection != f.generation {
		return
	}
	now := f.clock.Now()
	f.makeRoom(now)
	f.known[callerOf(checks)] = &refusal{
		checks: slices.Clone(checks), results: results, received: now, until: asked.sentAt.Add(wait),
	}
}

// lasts is for how long a refusal may be remembered: while all rules that refuse still do. Nothing is remembered where a
// shadow is to be charged, for a queue, which moves when others leave it, and where each attempt moves retry-after.
func lasts(checks []limiter.Check, results []limiter.Result) time.Duration {
	wait := limiter.Never
	refused := false
	for i := range checks {
		r := checks[i].Rule
		if r.Shadow || r.Mode == limiter.Hybrid || (r.CountRejected && (r.Algorithm != limiter.FixedWindow || len(checks) > 1)) {
			return 0
		}
		if results[i].Allowed {
			continue
		}
		if r.Algorithm == limiter.LeakyBucket {
			return 0
		}
		refused = true
		wait = min(wait, results[i].RetryAfter)
		if r.CountRejected {
			wait -= 2 * flushEvery // so that attempts are counted before the window ends
		}
	}
	if !refused {
		return 0
	}
	return min(wait, rememberFor)
}

// makeRoom drops what has ended among a few, and one of them if there are too many.
func (f *refusals) makeRoom(now time.Time) {
	looked := 0
	for _, r := range f.known {
		if !now.Before(r.until) || len(f.known) >= maxRefusals {
			f.drop(r)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

// drop forgets a refusal, and has its attempts counted.
func (f *refusals) drop(r *refusal) {
	delete(f.known, callerOf(r.checks))
	f.flush(r)
}

func (f *refusals) flush(r *refusal) {
	if r.attempts > 0 {
		f.count(r.checks, r.attempts)
		r.attempts = 0
	}
}

// forget drops everything: the server, or what it holds, may be another.
func (f *refusals) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	for _, r := range f.known {
		f.drop(r)
	}
}

func (f *refusals) connection() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation
}

func (f *refusals) flushSoon() {
	if f.flushing {
		return
	}
	f.flushing = true
	timer := f.clock.NewTimer(flushEvery)
	f.flusher.Go(func() {
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-f.closed:
		}
		f.flushAll()
	})
}

func (f *refusals) flushAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flushing = false
	for _, r := range f.known {
		f.flush(r)
	}
}

// close has the attempts counted that are not yet.
func (f *refusals) close() {
	close(f.closed)
	f.flusher.Wait()
}

// tell is what the server said, as it is now if nobody else has called.
func (r *refusal) tell(now time.Time) []limiter.Result {
	passed := now.Sub(r.received)
	results := make([]limiter.Result, len(r.results))
	for i, told := range r.results {
		told.RetryAfter = less(told.RetryAfter, passed)
		told.Limits = slices.Clone(told.Limits)
		for j := range told.Limits {
			s := &told.Limits[j]
			s.ResetAfter, s.RetryAfter = less(s.ResetAfter, passed), less(s.RetryAfter, passed)
			s.Current = min(s.Current+int64(r.attempts)*r.checks[i].Cost, limiter.MaxCost)
		}
		results[i] = told
	}
	return results
}

func less(wait, passed time.Duration) time.Duration {
	if wait == limiter.Never {
		return wait
	}
	return max(0, wait-passed)
}
