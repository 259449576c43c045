// Package hybrid decides requests by units that are leased from a store before they are used, so that most requests need
// no round trip and all processes together never admit more than the limit. Package limiter/internal/lease holds the
// units of one key; this package does that for many keys at once, and carries claims to the store.
package hybrid

import (
	"context"
	"hash/maphash"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/internal/lease"
)

const (
	shards = 64
	// perShard bounds the keys that units are leased for; for further ones the store decides each request.
	perShard = 1 << 14
	// returners is how many claims give units back at once when the store is closed.
	returners = 8
)

// Store is a limiter.Store that leases units of another. Rules that are not leased are decided there.
type Store struct {
	lessor  limiter.Lessor
	clock   clock.Clock
	seed    maphash.Seed
	shards  [shards]shard
	claims  sync.WaitGroup
	agenda  *agenda
	tending sync.WaitGroup
}

type shard struct {
	mu      sync.Mutex
	entries map[id]*entry // nil once the store is closed
}

// id tells counters apart as CounterKey does.
type id struct {
	scope, key string
	algorithm  limiter.Algorithm
}

// New returns a Store that leases from another until it is closed.
func New(l limiter.Lessor, c clock.Clock) *Store {
	s := &Store{lessor: l, clock: c, seed: maphash.MakeSeed(), agenda: newAgenda(c)}
	for i := range s.shards {
		s.shards[i].entries = map[id]*entry{}
	}
	s.tending.Go(func() { s.agenda.run(s.look) })
	return s
}

// Decide implements limiter.Store. What was taken for a request that another of its rules refuses is given back.
func (s *Store) Decide(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	results := make([]limiter.Result, len(checks))
	if len(checks) > 1 {
		checks = append([]limiter.Check(nil), checks...)
	}
	refused, err := s.decideLeased(ctx, checks, results)
	var rest []limiter.Result
	if err == nil {
		rest, err = s.decideRest(ctx, checks, &refused)
	}
	if (err != nil || refused) && len(checks) > 1 {
		limiter.GiveBack(s, checks, results, err != nil)
	}
	if err != nil {
		return nil, err
	}
	for i := range checks {
		if !leased(checks[i].Rule) {
			results[i], rest = rest[0], rest[1:]
		}
	}
	return results, nil
}

// decideLeased decides the checks that are leased, all at once. After a refusal the rest is only looked at.
func (s *Store) decideLeased(ctx context.Context, checks []limiter.Check, results []limiter.Result) (refused bool, failed error) {
	var waits []*waiter
	for i := range checks {
		c := &checks[i]
		if !leased(c.Rule) {
			continue
		}
		onlyLook(c, refused)
		result, w := s.take(c)
		if w != nil {
			w.check = i
			waits = append(waits, w)
			continue
		}
		results[i] = result
		refused = refused || refuses(c, &result)
	}
	for _, w := range waits {
		result, err := w.await(ctx)
		if err != nil {
			failed = err
			continue
		}
		results[w.check] = result
		refused = refused || refuses(&checks[w.check], &result)
	}
	return refused, failed
}

// decideRest has the store decide the other checks.
func (s *Store) decideRest(ctx context.Context, checks []limiter.Check, refused *bool) ([]limiter.Result, error) {
	var rest []limiter.Check
	for i := range checks {
		if !leased(checks[i].Rule) {
			onlyLook(&checks[i], *refused)
			rest = append(rest, checks[i])
		}
	}
	if len(rest) == 0 {
		return nil, nil
	}
	decided, err := s.lessor.Decide(ctx, rest)
	if err != nil {
		return nil, err //nolint:wrapcheck // it is a Store as this one is
	}
	for i := range rest {
		*refused = *refused || refuses(&rest[i], &decided[i])
	}
	return decided, nil
}

func leased(r *limiter.Rule) bool { return r.Mode == limiter.Hybrid && lease.Life(r) > 0 }

func refuses(c *limiter.Check, r *limiter.Result) bool { return !r.Allowed && !c.Rule.Shadow }

func onlyLook(c *limiter.Check, refused bool) {
	if refused && !c.Rule.Shadow {
		c.Cost = 0
	}
}

// GiveBack implements limiter.Returner.
func (s *Store) GiveBack(checks []limiter.Check, results []limiter.Result) {
	central, able := s.lessor.(limiter.Returner)
	for i := range checks {
		switch {
		case results[i].Source == limiter.FromLease:
			e := s.entry(&checks[i])
			e.holder.GiveBack(s.clock.Now(), checks[i].Cost, results[i].At)
			e.mu.Unlock()
		case able:
			central.GiveBack(checks[i:i+1], results[i:i+1])
		}
	}
}

// Held is how many units are leased and not used.
func (s *Store) Held() int64 {
	var n int64
	for _, e := range s.entries(false) {
		e.mu.Lock()
		n += e.holder.Held(s.clock.Now())
		e.mu.Unlock()
	}
	return n
}

// Close gives back all that is leased. Requests that still come are decided by the store.
func (s *Store) Close() {
	s.agenda.close()
	s.tending.Wait()
	var group errgroup.Group
	group.SetLimit(returners)
	for _, e := range s.entries(true) {
		group.Go(func() error {
			s.close(e)
			return nil
		})
	}
	_ = group.Wait() // none fails
	s.claims.Wait()
}

func (s *Store) entries(last bool) []*entry {
	var list []*entry
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			list = append(list, e)
		}
		if last {
			sh.entries = nil
		}
		sh.mu.Unlock()
	}
	return list
}
