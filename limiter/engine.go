package limiter

import (
	"context"
	"fmt"

	"github.com/sluice-dev/sluice/internal/clock"
)

// Engine decides requests by the mode and the failure policy of the rules that apply to them.
type Engine struct {
	local Store
	known *known
}

// NewEngine returns an Engine; local keeps the counters of this process alone and must not fail.
func NewEngine(local Store) *Engine { return &Engine{local: local, known: newKnown(clock.Real())} }

// Decide returns one Result a check, in their order. The request may pass if every check that is not Shadow is
// allowed, after the longest Delay. Checks of one backend are decided in one step. Where several backends are concerned
// and one refuses, those before it get their charges back, and those after it are only looked at.
//
// A store that fails is no error: each rule's OnFailure decides. The error is the context's.
func (e *Engine) Decide(ctx context.Context, checks []Check) ([]Result, error) {
	results := make([]Result, len(checks))
	refused := false
	for first := range checks {
		if results[first].Source != 0 {
			continue
		}
		group := sameBackend(checks, first)
		decided, err := e.decideGroup(ctx, pick(checks, group, refused))
		if err != nil {
			e.giveBack(checks, results, true)
			return nil, err
		}
		refuses := false
		for i, at := range group {
			refuses = refuses || (!decided[i].Allowed && !checks[at].Rule.Shadow)
		}
		if refuses && !refused {
			e.giveBack(checks, results, false)
		}
		refused = refused || refuses
		for i, at := range group {
			results[at] = decided[i]
		}
	}
	return results, nil
}

// giveBack returns what a request was charged so far. A shadow rule keeps its charge, unless the request leaves undecided.
func (e *Engine) giveBack(checks []Check, results []Result, undecided bool) {
	for i := range checks {
		one, result := checks[i:i+1], results[i:i+1]
		switch results[i].Source {
		case FromStore:
			GiveBack(checks[i].Rule.Backend.store, one, result, undecided)
		case FromLease:
			GiveBack(checks[i].Rule.Backend.hybrid, one, result, undecided)
		case FromShare:
			GiveBack(e.local, shares(one), result, undecided)
		default: // nothing was charged
		}
	}
}

// sameBackend lists the checks that go with the first: same store, and none before it.
func sameBackend(checks []Check, first int) []int {
	group := make([]int, 0, len(checks)-first)
	for i := first; i < len(checks); i++ {
		if checks[i].Rule.Backend == checks[first].Rule.Backend {
			group = append(group, i)
		}
	}
	return group
}

// pick copies the checks of a group; after a refusal they are only looked at.
func pick(checks []Check, group []int, refused bool) []Check {
	part := make([]Check, len(group))
	for i, at := range group {
		part[i] = checks[at]
		if refused && !checks[at].Rule.Shadow {
			part[i].Cost = 0
		}
	}
	return part
}

func (e *Engine) decideGroup(ctx context.Context, checks []Check) ([]Result, error) {
	backend := checks[0].Rule.Backend
	if backend == nil {
		return e.decideLocally(ctx, checks)
	}
	results, err := backend.decide(ctx, checks)
	if err == nil {
		e.known.note(checks, results)
		return results, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("caller left: %w", context.Cause(ctx))
	}
	return e.fallBack(ctx, checks)
}

func (e *Engine) decideLocally(ctx context.Context, checks []Check) ([]Result, error) {
	results, err := e.local.Decide(ctx, shares(checks))
	if err != nil {
		return nil, fmt.Errorf("decide locally: %w", err)
	}
	for i := range results {
		results[i].Source = FromShare
	}
	return results, nil
}

// shares are the checks as this process decides them alone.
func shares(checks []Check) []Check {
	parts := make([]Check, len(checks))
	for i, c := range checks {
		parts[i] = c
		if c.Rule.Local != nil {
			parts[i].Rule = c.Rule.Local
		}
	}
	return parts
}

// fallBack decides each check by its failure policy. Where one denies, the shares are not charged.
func (e *Engine) fallBack(ctx context.Context, checks []Check) ([]Result, error) {
	results := make([]Result, len(checks))
	var local []int
	denied := false
	for i, c := range checks {
		switch c.Rule.OnFailure {
		case FailAllow:
			results[i] = Result{Allowed: true, Source: FailedAllow}
		case FailDeny:
			results[i] = Result{Source: FailedDeny}
			denied = denied || !c.Rule.Shadow
		default: // see fallsBackToShare
			local = append(local, i)
		}
	}
	if len(local) == 0 {
		return results, nil
	}
	for _, at := range local {
		if err := e.prime(ctx, &checks[at]); err != nil {
			return nil, err
		}
	}
	shares, err := e.decideLocally(ctx, pick(checks, local, denied))
	if err != nil {
		return nil, err
	}
	for i, at := range local {
		results[at] = shares[i]
	}
	return results, nil
}
