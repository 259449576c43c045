package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
	"github.com/sluice-dev/sluice/limiter/storetest"
)

// virtual is a store on a fake clock, made anew for each schedule, since a schedule's time starts over.
type virtual struct {
	clock *clock.Fake
	store *memory.Store
}

func (v *virtual) Decide(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	return v.store.Decide(ctx, checks)
}

func (v *virtual) GiveBack(checks []limiter.Check, results []limiter.Result) {
	v.store.GiveBack(checks, results)
}

func (v *virtual) reset(now int64) {
	v.clock = clock.NewFake(time.UnixMicro(now))
	v.store = memory.New(memory.Options{Clock: v.clock})
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ *testing.T, now int64) storetest.Harness {
		v := &virtual{}
		v.reset(now)
		return storetest.Harness{
			Store: v,
			Set:   func(at int64) { v.clock.Advance(time.UnixMicro(at).Sub(v.clock.Now())) },
			Reset: func() { v.reset(now) },
		}
	})
}

func TestAFullStoreForgetsWhatIsNearestToItsEnd(t *testing.T) {
	t.Parallel()
	store := memory.New(memory.Options{MaxKeys: 64})
	rule := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: limiter.FixedWindow,
		Limits: []limiter.Limit{{Requests: 1, Window: time.Hour}},
	}
	for i := range 1000 {
		if _, err := store.Decide(t.Context(), []limiter.Check{{Rule: rule, Key: string(rune('a' + i)), Cost: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if store.Len() > 64 || store.Evicted() < 900 {
		t.Errorf("%d counters held, %d evicted; want at most 64, and the rest", store.Len(), store.Evicted())
	}
}
