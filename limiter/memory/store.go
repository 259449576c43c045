package memory

import (
	"context"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
)

const shards = 64

// Options shape a Store.
type Options struct {
	// Clock tells the time; nil is the machine's clock.
	Clock clock.Clock
	// MaxKeys bounds the counters; 0 is a million. A full store forgets the counters that are nearest to their end.
	MaxKeys int
}

// Store is a limiter.Store in this process.
type Store struct {
	clock    clock.Clock
	base     int64 // µs since the epoch when the store was made
	started  clockReading
	perShard int
	seed     maphash.Seed
	shards   [shards]shard
	evicted  atomic.Uint64
}

type shard struct {
	mu       sync.Mutex
	counters map[key]counter
}

// key names a counter, as Check.CounterKey does.
type key struct {
	scope, caller string
	algorithm     limiter.Algorithm
	window        time.Duration
}

// New returns an empty store.
func New(o Options) *Store {
	if o.Clock == nil {
		o.Clock = clock.Real()
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 1_000_000
	}
	now := o.Clock.Now()
	s := &Store{
		clock: o.Clock, base: now.UnixMicro(), started: clockReading{now},
		perShard: max(1, o.MaxKeys/shards), seed: maphash.MakeSeed(),
	}
	for i := range s.shards {
		s.shards[i].counters = map[key]counter{}
	}
	return s
}

// Len is the number of counters held.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += len(s.shards[i].counters)
		s.shards[i].mu.Unlock()
	}
	return n
}

// Evicted is how many counters were forgotten, before their end, because the store was full.
func (s *Store) Evicted() uint64 { return s.evicted.Load() }

// Reset forgets every counter.
func (s *Store) Reset() {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		clear(s.shards[i].counters)
		s.shards[i].mu.Unlock()
	}
}

// Decide implements limiter.Store. It never fails.
func (s *Store) Decide(_ context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	results := make([]limiter.Result, len(checks))
	s.DecideInto(checks, results)
	return results, nil
}

// DecideInto is Decide into results that are used again, one a check: it allocates nothing for keys that it knows.
func (s *Store) DecideInto(checks []limiter.Check, results []limiter.Result) {
	var few [8]touched
	list, locked := s.touch(few[:0], checks)
	s.lock(locked)
	defer s.unlock(locked)
	now := s.now()
	for i := range list {
		t := &list[i]
		t.counter = s.load(t.shard, t.key, now)
		t.counter.advance(now, t.terms)
		t.fits = t.counter.fits(max(1, t.check.Cost))
	}
	verdicts(list, results, now)
	admitted := true
	for i := range checks {
		admitted = admitted && (results[i].Allowed || checks[i].Rule.Shadow)
	}
	settle(list, results, admitted)
}

// GiveBack implements limiter.Returner.
func (s *Store) GiveBack(checks []limiter.Check, results []limiter.Result) {
	var few [8]touched
	list, locked := s.touch(few[:0], checks)
	s.lock(locked)
	defer s.unlock(locked)
	now := s.now()
	for i := range list {
		t := &list[i]
		if c := t.shard.counters[t.key]; c != nil {
			c.takeBack(now, t.terms, t.check.Cost, limiter.Receipt(t.check, &results[t.index]))
		}
	}
}

// touched is one limit of one check, and its counter.
type touched struct {
	check   *limiter.Check
	index   int // of the check
	limit   int64
	terms   terms
	key     key
	shard   *shard
	counter counter
	fits    bool
}

// shardSet has a bit for each shard.
type shardSet uint64

// touch lists the limits of all checks and the shards that hold their counters.
func (s *Store) touch(list []touched, checks []limiter.Check) ([]touched, shardSet) {
	var set shardSet
	for i := range checks {
		c := &checks[i]
		for _, l := range c.Rule.Limits {
			k := key{c.Rule.Scope, c.Key, c.Rule.Algorithm, l.Window}
			n := maphash.Comparable(s.seed, k) % shards
			set |= 1 << n
			list = append(list, touched{
				check: c, index: i, limit: l.Requests, terms: termsOf(c.Rule, l), key: k, shard: &s.shards[n],
			})
		}
	}
	return list, set
}

// lock takes shards in one order, so that two requests never wait for each other.
func (s *Store) lock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Lock()
	}
}

func (s *Store) unlock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}

func (s *Store) load(sh *shard, k key, now int64) counter {
	c, found := sh.counters[k]
	if !found {
		if len(sh.counters) >= s.perShard {
			s.evict(sh, now)
		}
		c = newCounter(k.algorithm)
		sh.counters[k] = c
	}
	return c
}

// verdicts tells for each check whether all its limits fit.
func verdicts(list []touched, results []limiter.Result, now int64) {
	for i := range results {
		results[i] = limiter.Result{Allowed: true, Source: limiter.FromStore, At: now, Limits: results[i].Limits[:0]}
	}
	for i := range list {
		results[list[i].index].Allowed = results[list[i].index].Allowed && list[i].fits
	}
}

// settle charges what is to be charged and describes how each limit stands.
func settle(list []touched, results []limiter.Result, admitted bool) {
	for i := range list {
		t := &list[i]
		r := &results[t.index]
		if t.check.Rule.Algorithm == limiter.LeakyBucket && r.Allowed && t.check.Cost > 0 {
			r.Delay = micros(t.counter.standing(1).reset) // the backlog before this caller
		}
		if t.charges(r.Allowed, admitted) {
			t.counter.add(t.check.Cost)
		}
		after := t.counter.standing(max(1, t.check.Cost))
		r.Limits = append(r.Limits, after.state(t.fits, r.Allowed, t.limit))
		if !r.Allowed {
			r.RetryAfter = max(r.RetryAfter, r.Limits[len(r.Limits)-1].RetryAfter)
		}
	}
}

// charges tells whether a limit is charged, given whether its check and the request were admitted. A request that
// can never be admitted is not counted as an attempt.
func (t *touched) charges(allowed, admitted bool) bool {
	if !allowed {
		return t.check.Rule.CountRejected && max(1, t.check.Cost) <= t.terms.capacity
	}
	return admitted || t.check.Rule.Shadow
}

func (s *Store) now() int64 { return s.base + s.started.microsUntil(s.clock) }
