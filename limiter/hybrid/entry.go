package hybrid

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/internal/lease"
)

// entry is what is held for one rule and key, and who waits for it.
type entry struct {
	id id

	mu      sync.Mutex
	holder  *lease.Holder
	waiting []*waiter // to be put to the store with the next claim
	gone    bool      // no longer among the store's entries: look for another
	stray   bool      // never among them: it serves one request
}

// waiter is a request that the next claim puts to the store.
type waiter struct {
	entry *entry
	check int // of its request
	cost  int64
	done  chan answer
}

type answer struct {
	result limiter.Result
	err    error
}

// await returns the decision. Whoever leaves before the claim was sent is not counted.
func (w *waiter) await(ctx context.Context) (limiter.Result, error) {
	select {
	case a := <-w.done:
		return a.result, a.err
	case <-ctx.Done():
		w.entry.mu.Lock()
		defer w.entry.mu.Unlock()
		w.entry.waiting = slices.DeleteFunc(w.entry.waiting, func(o *waiter) bool { return o == w })
		return limiter.Result{}, fmt.Errorf("wait for the store: %w", context.Cause(ctx))
	}
}

// entry returns what is held for a check, locked.
func (s *Store) entry(c *limiter.Check) *entry {
	for {
		e := s.find(c)
		e.mu.Lock()
		if !e.gone {
			s.edit(e, c.Rule)
			return e
		}
		e.mu.Unlock()
	}
}

func (s *Store) find(c *limiter.Check) *entry {
	i := id{c.Rule.Scope, c.Key, c.Rule.Algorithm}
	sh := s.shard(i)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[i]; e != nil {
		return e
	}
	e := &entry{id: i, holder: newHolder(c.Rule, c.Key)}
	if e.stray = sh.entries == nil || len(sh.entries) >= perShard; !e.stray {
		sh.entries[i] = e
		s.agenda.add(e, s.clock.Now().Add(lease.Life(c.Rule)/2))
	}
	return e
}

func newHolder(r *limiter.Rule, key string) *lease.Holder {
	return lease.New(r, key, rand.Uint64()) //nolint:gosec // it has to differ from others, not to be a secret
}

func (s *Store) shard(i id) *shard { return &s.shards[maphash.Comparable(s.seed, i)%shards] }

// edit gives back what was leased under other limits.
func (s *Store) edit(e *entry, r *limiter.Rule) {
	former, now := e.holder, s.clock.Now()
	if slices.Equal(former.Rule().Limits, r.Limits) {
		return
	}
	e.holder = newHolder(r, e.id.key)
	s.giveUp(e, former, now)
}

func (s *Store) giveUp(e *entry, h *lease.Holder, now time.Time) {
	if !h.Flying() && h.Holds(now) {
		s.send(e, h, h.Return(now), nil, now)
	}
}

// take decides a check by what is held, or tells what to wait for.
func (s *Store) take(c *limiter.Check) (limiter.Result, *waiter) {
	e := s.entry(c)
	defer e.mu.Unlock()
	now := s.clock.Now()
	verdict := e.holder.Take(now, c.Cost)
	if verdict == lease.Waits {
		w := &waiter{entry: e, cost: c.Cost, done: make(chan answer, 1)}
		e.waiting = append(e.waiting, w)
		s.claim(e, now)
		return limiter.Result{}, w
	}
	result := e.holder.Result(now, verdict == lease.Granted, c.Cost)
	if e.holder.Due(now) {
		s.claim(e, now)
	}
	return result, nil
}

// claim puts those who wait to the store, unless a claim is under way.
func (s *Store) claim(e *entry, now time.Time) {
	if e.holder.Flying() {
		return
	}
	asked := e.waiting
	e.waiting = nil
	s.send(e, e.holder, e.holder.Claim(now, fold(asked)), asked, now)
}

// fold counts neighbours of the same cost together.
func fold(asked []*waiter) []limiter.Ask {
	var asks []limiter.Ask
	for _, w := range asked {
		if n := len(asks); n > 0 && asks[n-1].Cost == w.cost {
			asks[n-1].Callers++
		} else {
			asks = append(asks, limiter.Ask{Cost: w.cost, Callers: 1})
		}
	}
	return asks
}

func (s *Store) send(e *entry, h *lease.Holder, c *limiter.Claim, asked []*waiter, sent time.Time) {
	s.claims.Go(func() { s.carry(e, h, c, asked, sent) })
}

// carry takes a claim to the store and the answer to those who wait for it.
func (s *Store) carry(e *entry, h *lease.Holder, c *limiter.Claim, asked []*waiter, sent time.Time) {
	grant, err := s.lessor.Lease(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := s.clock.Now()
	if err != nil {
		h.Fail()
		fail(append(asked, e.waiting...), err)
		e.waiting = nil
		return
	}
	h.Settle(sent, now, grant)
	serve(h, c.Asks, grant.Served, asked, now)
	s.retake(e, now)
	if h != e.holder || e.gone || e.stray { // the rule was edited meanwhile, or nobody comes again
		s.giveUp(e, h, now)
	}
}

func fail(list []*waiter, err error) {
	for _, w := range list {
		w.done <- answer{err: err}
	}
}

// serve tells the callers of each ask what the store decided: first come, first served.
func serve(h *lease.Holder, asks []limiter.Ask, served []int64, asked []*waiter, now time.Time) {
	for i, ask := range asks {
		for n := range ask.Callers {
			asked[0].done <- answer{result: h.Answer(now, n < served[i], ask.Cost)}
			asked = asked[1:]
		}
	}
}

// retake decides those who came while a claim was under way.
func (s *Store) retake(e *entry, now time.Time) {
	came := e.waiting
	e.waiting = nil
	for _, w := range came {
		switch verdict := e.holder.Retake(now, w.cost); verdict {
		case lease.Waits:
			e.waiting = append(e.waiting, w)
		default:
			w.done <- answer{result: e.holder.Result(now, verdict == lease.Granted, w.cost)}
		}
	}
	if len(e.waiting) > 0 {
		s.claim(e, now)
	}
}

// look looks after an entry while nobody calls, and tells when to look again; 0 = no more.
func (s *Store) look(e *entry) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := s.clock.Now()
	claim, again := e.holder.Tend(now)
	if claim != nil {
		s.send(e, e.holder, claim, nil, now)
		return lease.Life(e.holder.Rule()) / 2
	}
	if again > 0 || len(e.waiting) > 0 {
		return max(again, time.Millisecond)
	}
	e.gone = true
	s.forget(e)
	return 0
}

func (s *Store) forget(e *entry) {
	sh := s.shard(e.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.entries, e.id)
}

// close gives back what is held, or has it given back when the claim under way is answered.
func (s *Store) close(e *entry) {
	e.mu.Lock()
	e.gone = true
	h, now := e.holder, s.clock.Now()
	if h.Flying() || !h.Holds(now) {
		e.mu.Unlock()
		return
	}
	c := h.Return(now)
	e.mu.Unlock()
	s.carry(e, h, c, nil, now)
}
