package limiter

import (
	"context"
	"time"
)

// Lessor is a Store that leases units: they are taken before they are used, and count against every limit of the rule
// until they are used, given back, or lapse.
type Lessor interface {
	Store
	// Lease does all that a Claim says in one atomic step. After an error it is not known whether it was done. No request
	// can cut it short: others wait for it as well.
	Lease(c *Claim) (Grant, error)
}

// Claim is what a holder of leased units reports of one rule and key, and what it asks for. Times are microseconds by
// the store's clock.
type Claim struct {
	Rule *Rule
	Key  string
	// Holder tells those who lease of one counter apart; 1 … 2^53-1.
	Holder int64
	// Used units of the lease were used since the last claim, the last of them at LastUse or before.
	Used, LastUse int64
	// Kept units of the lease may still be used; the rest goes back.
	Kept int64
	// Asks are callers that wait. The store decides them by itself, in order, before it leases anything.
	Asks []Ask
	// Want is how many units more are asked for. All that are leased then may be used until Life after the claim was done.
	Want int64
	Life time.Duration
}

// Ask is some callers with requests of the same cost. Cost 0 is admitted if 1 would be.
type Ask struct{ Cost, Callers int64 }

// Grant is the answer to a Claim.
type Grant struct {
	// Now is the time by the store's clock.
	Now int64
	// Kept tells that the kept units are still leased; false if the lease had lapsed.
	Kept bool
	// Units are leased on top.
	Units int64
	// Served is how many callers of each Ask are admitted.
	Served []int64
	// Limits tell how each limit stands if every leased unit gets used: Remaining is what could still be leased,
	// RetryAfter is for the largest cost that was refused, or 1 if nothing is left, and it and ResetAfter are upper bounds.
	Limits []State
}

// Lease has rules in mode Hybrid decided by a Store that leases from this one. It is given what it leases from, behind the
// breaker, and stands before it itself: what is leased may be used while the store fails. A store that leases nothing is in
// this process, and decides such rules as the others.
func (b *Backend) Lease(holder func(Lessor) Store) {
	if lessor, able := b.store.(Lessor); able {
		b.hybrid = holder(guarded{b, lessor})
	}
}

// guarded is a Lessor behind the breaker of its backend.
type guarded struct {
	backend *Backend
	lessor  Lessor
}

func (g guarded) Decide(ctx context.Context, checks []Check) ([]Result, error) {
	return g.backend.ask(ctx, checks)
}

func (g guarded) Lease(c *Claim) (grant Grant, err error) {
	_, err = g.backend.breaker.Execute(func() ([]Result, error) {
		grant, err = g.lessor.Lease(c)
		return nil, g.backend.noted(err)
	})
	return grant, err
}

// GiveBack implements Returner.
func (g guarded) GiveBack(checks []Check, results []Result) {
	if r, able := g.lessor.(Returner); able {
		r.GiveBack(checks, results)
	}
}
