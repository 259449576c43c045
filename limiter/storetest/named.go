package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// testBoundary: with 100 a minute, 100 requests in second 59 and 100 in second 61 are exactly 100 for a sliding window,
// one more for the counter, which takes the first hundred as spread over the minute, and 200 for a fixed window.
func testBoundary(t *testing.T, newHarness func(*testing.T, int64) Harness) {
	t.Helper()
	for a, want := range map[limiter.Algorithm]int{
		limiter.SlidingWindowLog: 100, limiter.SlidingWindowCounter: 101, limiter.FixedWindow: 200,
	} {
		h := newHarness(t, epoch)
		rule := &limiter.Rule{
			Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Central,
			Limits: []limiter.Limit{{Requests: 100, Window: time.Minute}},
		}
		admitted := 0
		for _, second := range []int64{59, 61} {
			for i := range int64(100) {
				h.Set(epoch + second*1_000_000 + i*1000)
				if decide(t, h, limiter.Check{Rule: rule, Key: "k", Cost: 1})[0].Allowed {
					admitted++
				}
			}
		}
		if admitted != want {
			t.Errorf("algorithm %d admitted %d of 200, want %d", a, admitted, want)
		}
	}
}

// testShadow: a shadow rule that is exhausted withholds no other rule's charge.
func testShadow(t *testing.T, h Harness) {
	t.Helper()
	shadow := windowRule("ns/p/shadow/t", 1)
	shadow.Shadow = true
	checks := []limiter.Check{{Rule: shadow, Key: "k", Cost: 1}, {Rule: windowRule("ns/p/real/t", 3), Key: "k", Cost: 1}}
	var shadowRefused, admitted int
	for range 5 {
		r := decide(t, h, checks...)
		if !r[0].Allowed {
			shadowRefused++
		}
		if r[1].Allowed {
			admitted++
		}
	}
	if shadowRefused != 4 || admitted != 3 {
		t.Errorf("the shadow refused %d of 5, the rule admitted %d; want 4 and 3", shadowRefused, admitted)
	}
}

// testAllOrNothing: what one rule refuses costs nothing in another.
func testAllOrNothing(t *testing.T, h Harness) {
	t.Helper()
	narrow, wide := windowRule("ns/p/narrow/t", 1), windowRule("ns/p/wide/t", 10)
	for range 5 {
		decide(t, h, limiter.Check{Rule: wide, Key: "k", Cost: 1}, limiter.Check{Rule: narrow, Key: "k", Cost: 1})
	}
	r := decide(t, h, limiter.Check{Rule: wide, Key: "k", Cost: 1})
	if got := r[0].Limits[0].Remaining; got != 8 {
		t.Errorf("%d remain, want 8: one admitted with the narrow rule, one alone", got)
	}
}

func windowRule(scope string, requests int64) *limiter.Rule {
	return &limiter.Rule{
		Scope: scope, Namespace: "ns", Algorithm: limiter.SlidingWindowCounter, Mode: limiter.Central,
		Limits: []limiter.Limit{{Requests: requests, Window: time.Minute}},
	}
}

func decide(t *testing.T, h Harness, checks ...limiter.Check) []limiter.Result {
	t.Helper()
	r, err := h.Store.Decide(context.Background(), checks)
	if err != nil {
		t.Fatalf("decide: %v", err)
	}
	return r
}
