package memory_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
)

var algorithms = map[string]limiter.Algorithm{
	"TokenBucket": limiter.TokenBucket, "LeakyBucket": limiter.LeakyBucket, "FixedWindow": limiter.FixedWindow,
	"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
}

func ruleOf(a limiter.Algorithm) *limiter.Rule {
	r := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: a, Mode: limiter.Local,
		Limits: []limiter.Limit{{Requests: 100, Window: time.Second}},
	}
	if a == limiter.LeakyBucket {
		r.Queue = limiter.Queue{MaxLength: 100, MaxWait: time.Second}
	}
	return r
}

//nolint:paralleltest // AllocsPerRun counts for the whole process
func TestADecisionOnAKnownKeyAllocatesNothing(t *testing.T) {
	for name, a := range algorithms {
		store := memory.New(memory.Options{})
		checks := []limiter.Check{{Rule: ruleOf(a), Key: "k", Cost: 1}}
		results := make([]limiter.Result, 1)
		for range 300 { // until the log has its size
			store.DecideInto(checks, results)
		}
		if n := testing.AllocsPerRun(1000, func() { store.DecideInto(checks, results) }); n != 0 {
			t.Errorf("%s allocates %v times a decision", name, n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for name, a := range algorithms {
		b.Run(name, func(b *testing.B) {
			store := memory.New(memory.Options{})
			checks := []limiter.Check{{Rule: ruleOf(a), Key: "k", Cost: 1}}
			results := make([]limiter.Result, 1)
			b.ReportAllocs()
			for b.Loop() {
				store.DecideInto(checks, results)
			}
		})
	}
}

func BenchmarkDecideManyKeys(b *testing.B) {
	store := memory.New(memory.Options{})
	rule := ruleOf(limiter.TokenBucket)
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		results := make([]limiter.Result, 1)
		for i := 0; pb.Next(); i++ {
			store.DecideInto([]limiter.Check{{Rule: rule, Key: keys[i%len(keys)], Cost: 1}}, results)
		}
	})
}
