package limiter_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
	"github.com/sluice-dev/sluice/limiter/redis"
)

type heard struct {
	mu      sync.Mutex
	reasons map[string]int
	open    bool
}

func (*heard) RoundTrip(string) {}

func (h *heard) StoreError(_, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reasons == nil {
		h.reasons = map[string]int{}
	}
	h.reasons[reason]++
}

func (h *heard) was(reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reasons[reason] > 0
}

func (h *heard) CircuitOpen(_ string, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = open
}

func (h *heard) isOpen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

func backend(t *testing.T, addr string) (*limiter.Backend, *heard) {
	t.Helper()
	store := redis.Open(redis.Options{Topology: redis.Standalone, Addresses: []string{addr}, Timeout: 10 * time.Second})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &heard{}
	return limiter.NewBackend("ns/redis", store, h, slog.New(slog.NewTextHandler(io.Discard, nil))), h
}

func rule(b *limiter.Backend, onFailure limiter.FailurePolicy, requests int64) *limiter.Rule {
	r := &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: limiter.SlidingWindowLog, Mode: limiter.Central,
		Limits: []limiter.Limit{{Requests: requests, Window: time.Hour}}, OnFailure: onFailure, Backend: b,
	}
	r.Local = r.ForShare(limiter.Share{Rank: 0, Of: 2})
	return r
}

func ask(t *testing.T, e *limiter.Engine, r *limiter.Rule) limiter.Result {
	t.Helper()
	got, err := e.Decide(t.Context(), []limiter.Check{{Rule: r, Key: "k", Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func TestManyProcessesShareOneLimitExactly(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	var mu sync.Mutex
	admitted := 0
	var group sync.WaitGroup
	for range 10 {
		b, _ := backend(t, server.Addr)
		e, r := limiter.NewEngine(memory.New(memory.Options{})), rule(b, limiter.FailDeny, 50)
		group.Go(func() {
			for range 20 {
				got, err := e.Decide(context.Background(), []limiter.Check{{Rule: r, Key: "k", Cost: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				if got[0].Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if admitted != 50 {
		t.Errorf("ten processes admitted %d of 200, want exactly 50", admitted)
	}
}

func TestWhatHappensWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b, h := backend(t, server.Addr)
	e := limiter.NewEngine(memory.New(memory.Options{}))
	share, allow, deny := rule(b, limiter.FailLocal, 6), rule(b, limiter.FailAllow, 6), rule(b, limiter.FailDeny, 6)
	if got := ask(t, e, deny); !got.Allowed || got.Source != limiter.FromStore {
		t.Fatalf("with the store: %+v", got)
	}
	server.Stop()
	admitted := 0
	for range 6 {
		if got := ask(t, e, share); got.Allowed {
			admitted++
		}
	}
	if admitted != 3 {
		t.Errorf("one of two shares of 6 admitted %d, want 3", admitted)
	}
	if got := ask(t, e, allow); !got.Allowed || got.Source != limiter.FailedAllow {
		t.Errorf("onStoreFailure Allow: %+v", got)
	}
	if got := ask(t, e, deny); got.Allowed || got.Source != limiter.FailedDeny {
		t.Errorf("onStoreFailure Deny: %+v", got)
	}
	if !h.isOpen() {
		t.Error("the circuit is closed after many failures")
	}
	server.Start()
	for deadline := time.Now().Add(10 * time.Second); h.isOpen(); {
		if time.Now().After(deadline) {
			t.Fatal("the circuit stays open though the store is back")
		}
		ask(t, e, deny)
	}
	if got := ask(t, e, deny); got.Source != limiter.FromStore {
		t.Errorf("after the store's return: %+v", got)
	}
}

func TestAShareBeginsAsUsedAsTheLimitWasWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]limiter.Algorithm{
		"TokenBucket": limiter.TokenBucket, "LeakyBucket": limiter.LeakyBucket, "FixedWindow": limiter.FixedWindow,
		"SlidingWindowLog": limiter.SlidingWindowLog, "SlidingWindowCounter": limiter.SlidingWindowCounter,
	} {
		server := testredis.Start(t)
		b, _ := backend(t, server.Addr)
		r := rule(b, limiter.FailLocal, 10)
		r.Algorithm, r.Limits[0].Window = a, limiter.MaxWindow
		r.Queue = limiter.Queue{MaxLength: 8, MaxWait: limiter.MaxWindow}
		r.Local = r.ForShare(limiter.Share{Rank: 0, Of: 2})
		e := limiter.NewEngine(memory.New(memory.Options{}))
		for range 6 {
			ask(t, e, r)
		}
		server.Stop()
		admitted := 0
		for range 10 {
			if got := ask(t, e, r); got.Allowed && got.Source == limiter.FromShare {
				admitted++
			}
		}
		if admitted != 2 {
			t.Errorf("%s: after 6 of 10 a share of 5 admitted %d, want the 2 that are left of it", name, admitted)
		}
	}
}

func TestSharesSumToTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		of := rapid.IntRange(1, 60).Draw(rt, "of")
		requests := rapid.Int64Range(int64(of), 100_000).Draw(rt, "requests")
		r := &limiter.Rule{Limits: []limiter.Limit{{Requests: requests, Window: time.Minute}}}
		var sum int64
		for rank := range of {
			sum += r.ForShare(limiter.Share{Rank: rank, Of: of}).Limits[0].Requests
		}
		if sum != requests {
			rt.Fatalf("shares sum to %d, want %d", sum, requests)
		}
	})
}

func TestAShareBelowOneIsOneInALongerWindow(t *testing.T) {
	t.Parallel()
	r := &limiter.Rule{Limits: []limiter.Limit{{Requests: 2, Window: time.Minute}}}
	got := r.ForShare(limiter.Share{Rank: 7, Of: 10}).Limits[0]
	if got.Requests != 1 || got.Window != 5*time.Minute {
		t.Errorf("got %d per %s, want 1 per 5m", got.Requests, got.Window)
	}
	r.Limits[0].Window = limiter.MaxWindow
	if got := r.ForShare(limiter.Share{Rank: 7, Of: 10}).Limits[0]; got.Window != 5*limiter.MaxWindow {
		t.Errorf("got one per %s, want one per 5 times 744h", got.Window)
	}
}
