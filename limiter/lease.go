package limiter

import (
	"context"
	"time"
)

// Lessor is a Store that leases units: they are taken before they are used, and count against every limit of the rule
// until they are used, given back, or lapse.
type Lessor interface {
	Store
	// Lease does all that a Claim says in one atomic step. After an error it is not known whether it was done.
	Lease(ctx context.Context, c *Claim) (Grant, error)
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
	// RetryAfter is for the largest cost that was refused, and it and ResetAfter are upper bounds.
	Limits []State
}
