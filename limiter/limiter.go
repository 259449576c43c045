// Package limiter decides whether a request may pass now.
//
// It knows nothing of HTTP or Kubernetes and can be used on its own: build an Engine over a
// store, describe each limit once as a Rule, and ask Decide with the rules that apply to a request.
package limiter

import "time"

// Algorithm is a way to limit. What each means, and what each field of a Result means
// in it, is in docs/reference/algorithms.md.
type Algorithm uint8

// The algorithms.
const (
	TokenBucket Algorithm = iota + 1
	LeakyBucket
	FixedWindow
	SlidingWindowLog
	SlidingWindowCounter
)

// Mode says where decisions are taken.
type Mode uint8

// The modes.
const (
	Central Mode = iota + 1
	Hybrid
	Local
)

// FailurePolicy says what happens while the store can't be asked.
type FailurePolicy uint8

// The failure policies.
const (
	FailLocal FailurePolicy = iota + 1
	FailAllow
	FailDeny
)

// Limit admits Requests units a Window.
type Limit struct {
	Requests int64         // 0 … 2^31-1
	Window   time.Duration // 1ms … 744h, whole milliseconds
	Burst    int64         // TokenBucket: the capacity; 0 = Requests. Otherwise 0
}

// Queue is how callers wait in a LeakyBucket.
type Queue struct {
	MaxLength int64 // waiting callers, over all sidecars
	MaxWait   time.Duration
}

// Share is this process's part in limits that are enforced without a store:
// Rank is 0 … Of-1 and different in each process. The zero Share is the whole.
type Share struct{ Rank, Of int }

// Rule is one rule for one tier: what stays the same from request to request.
// A Rule must not be changed after its first use; an edit is a new Rule with the same Scope.
type Rule struct {
	// Scope identifies the rule over edits and processes: namespace/policy/rule/tier.
	Scope string
	// Namespace prefixes the store's keys, so that a store can keep tenants apart.
	Namespace string
	Algorithm Algorithm
	Limits    []Limit // at least one; LeakyBucket: exactly one
	// CountRejected charges refused requests too (FixedWindow, SlidingWindowLog, SlidingWindowCounter in Central).
	CountRejected bool
	Queue         Queue // LeakyBucket only
	Mode          Mode
	OnFailure     FailurePolicy
	// Backend is the store that the rule counts in; nil in mode Local.
	Backend *Backend
	// Local is what this process enforces alone: in mode Local, and with FailLocal while the store fails. See ForShare.
	Local *Rule
	// Shadow counts and reports; it never delays, and its refusal withholds no other rule's charge.
	Shadow bool
}

// Check is one rule applied to one request.
type Check struct {
	Rule *Rule
	// Key tells callers apart; already hashed by whoever must hide identities from the store.
	Key  string
	Cost int64 // units, 0 … MaxCost; 0 is admitted if 1 would be, and records nothing
}

// Source says who decided.
type Source uint8

// The sources of a Result.
const (
	FromStore   Source = iota + 1 // the store, or what it said before
	FromLease                     // a slice that was leased from the store
	FromShare                     // this process's share (mode Local, or FailLocal)
	FailedAllow                   // the store failed; the policy allows
	FailedDeny                    // the store failed; the policy denies
)

// State is how one limit stands after the decision.
type State struct {
	Allowed    bool
	Limit      int64         // Requests of the limit in force (a share in mode Local)
	Remaining  int64         // units of cost 1 that would be admitted now
	Current    int64         // units counted now, this request too if it was counted
	ResetAfter time.Duration // until nothing would be counted if nobody called
	RetryAfter time.Duration // after a refusal: until the same request would be admitted; Never = it can't be
}

// Never is the RetryAfter of a request that can never be admitted: its cost is above the capacity.
const Never = time.Duration(1<<63 - 1)

// Result is the decision on one Check.
type Result struct {
	Allowed bool
	Source  Source
	// Delay is how long the caller was, or must be, held (LeakyBucket).
	Delay time.Duration
	// RetryAfter is the longest of the limits'.
	RetryAfter time.Duration
	// At is the time of the decision by the store's clock, in microseconds since the epoch. FromLease, it names the lease.
	At int64
	// Limits has one State for each of the rule's limits, in their order.
	Limits []State
}
