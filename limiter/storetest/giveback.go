package storetest

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/model"
)

// testGiveBack: a charge that is given back at once leaves no trace, in any algorithm.
func testGiveBack(t *testing.T, h Harness, a limiter.Algorithm) {
	t.Helper()
	rule := giveBackRule(a, 10)
	check := limiter.Check{Rule: rule, Key: "k", Cost: 2}
	before := decide(t, h, check)
	for range 3 {
		charged := decide(t, h, check)
		h.giveBack(check, charged[0])
	}
	after := decide(t, h, check)
	if got, want := after[0].Limits[0].Current, before[0].Limits[0].Current+2; got != want {
		t.Errorf("%d units count, want %d", got, want)
	}
}

// givingBack is a property: whatever is charged, and given back whenever, a store never has more left than if what was
// given back had never been charged.
func givingBack(rt *rapid.T, h Harness, a limiter.Algorithm) {
	h.Reset()
	now := epoch + rapid.Int64Range(0, 1e9).Draw(rt, "start")
	rule := giveBackRule(a, rapid.Int64Range(1, 30).Draw(rt, "requests"))
	var kept, given []charge
	for range rapid.IntRange(1, 25).Draw(rt, "steps") {
		now += drawPause(rt, rule)
		h.Set(now)
		check := limiter.Check{Rule: rule, Key: "k", Cost: rapid.Int64Range(1, 3).Draw(rt, "cost")}
		results, err := h.Store.Decide(rt.Context(), []limiter.Check{check})
		if err != nil {
			rt.Fatalf("decide: %v", err)
		}
		if results[0].Allowed {
			kept = append(kept, charge{now, check, results[0]})
		}
		for len(kept) > 0 && rapid.IntRange(0, 3).Draw(rt, "give back") == 0 {
			i := rapid.IntRange(0, len(kept)-1).Draw(rt, "which")
			h.giveBack(kept[i].check, kept[i].result)
			given = append(given, kept[i])
			kept = slices.Delete(kept, i, i+1)
		}
		looked, err := h.Store.Decide(rt.Context(), []limiter.Check{{Rule: rule, Key: "k"}})
		if err != nil {
			rt.Fatalf("look: %v", err)
		}
		if got, want := looked[0].Limits[0].Current, countOf(rule, kept, now); got < want {
			rt.Fatalf("%d units count, %d were charged and not given back (%d were)", got, want, len(given))
		}
	}
}

// charge is what a request was charged.
type charge struct {
	at     int64
	check  limiter.Check
	result limiter.Result
}

// countOf is what counts of some charges, had there been no others.
func countOf(r *limiter.Rule, charges []charge, now int64) int64 {
	c := model.New(r.Algorithm)
	for _, k := range charges {
		c.Edit(k.at, r.Limits[0], r.Queue)
		c.Add(k.at, k.check.Cost)
	}
	c.Edit(now, r.Limits[0], r.Queue)
	return c.Count(now)
}

func giveBackRule(a limiter.Algorithm, requests int64) *limiter.Rule {
	r := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Central,
		Limits: []limiter.Limit{{Requests: requests, Window: time.Second}},
	}
	if a == limiter.LeakyBucket {
		r.Queue = limiter.Queue{MaxLength: 20, MaxWait: time.Minute}
	}
	return r
}

func (h Harness) giveBack(c limiter.Check, r limiter.Result) {
	h.Store.(limiter.Returner).GiveBack([]limiter.Check{c}, []limiter.Result{r}) //nolint:forcetypeassert // every store is one
	if h.Settle != nil {
		h.Settle()
	}
}
