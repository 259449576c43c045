package limiter_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
)

// onePerSecond lets one caller out each second.
func onePerSecond(b *limiter.Backend) *limiter.Rule {
	return &limiter.Rule{
		Scope: "ns/p/r/t", Namespace: "ns", Algorithm: limiter.LeakyBucket, Mode: limiter.Central,
		Limits: []limiter.Limit{{Requests: 1, Window: time.Second}},
		Queue:  limiter.Queue{MaxLength: 10, MaxWait: time.Minute}, OnFailure: limiter.FailDeny, Backend: b,
	}
}

// held is callers that wait.
type held struct {
	t      *testing.T
	engine *limiter.Engine
	lines  *limiter.Lines
	clock  *clock.Fake
	group  sync.WaitGroup
}

// reserve decides, and returns how long the caller must wait.
func (h *held) reserve(r *limiter.Rule) ([]limiter.Check, []limiter.Result) {
	h.t.Helper()
	checks := []limiter.Check{{Rule: r, Key: "k", Cost: 1}}
	got, err := h.engine.Decide(h.t.Context(), checks)
	if err != nil {
		h.t.Fatal(err)
	}
	return checks, got
}

// caller waits in the background; the returned functions make it leave, and wait until it departed or left.
func (h *held) caller(r *limiter.Rule, timers int) (leave func(), gone func() error) {
	h.t.Helper()
	checks, results := h.reserve(r)
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	h.group.Go(func() { ended <- h.lines.Wait(ctx, checks, results) })
	h.clock.AwaitTimers(timers)
	return leave, func() error { return <-ended }
}

func newHeld(t *testing.T) *held {
	t.Helper()
	c := clock.NewFake(time.Unix(1_000_000, 0))
	e := limiter.NewEngine(memory.New(memory.Options{Clock: c}))
	h := &held{t: t, engine: e, lines: limiter.NewLines(e, c), clock: c}
	t.Cleanup(h.group.Wait)
	return h
}

func TestACallerThatLeavesHandsItsDepartureToTheNext(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	r := onePerSecond(nil)
	h.reserve(r) // departs at once
	leave, gone := h.caller(r, 1)
	_, second := h.caller(r, 2)
	_, third := h.caller(r, 3)
	h.clock.Advance(500 * time.Millisecond)
	leave()
	if err := gone(); !errors.Is(err, context.Canceled) {
		t.Fatalf("who left got %v", err)
	}
	if _, got := h.reserve(r); got[0].Delay != 2500*time.Millisecond {
		t.Errorf("the next caller waits %s, want 2.5s: the last departure of three went back", got[0].Delay)
	}
	h.clock.AwaitTimers(2)
	h.clock.Advance(500 * time.Millisecond)
	if err := second(); err != nil {
		t.Errorf("who was second departs with %v", err)
	}
	h.clock.AwaitTimers(1)
	h.clock.Advance(time.Second)
	if err := third(); err != nil {
		t.Errorf("who was third departs with %v", err)
	}
}

func TestAShadowAndACallerWithoutDelayWaitForNothing(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	r := onePerSecond(nil)
	r.Shadow = true
	for range 3 {
		checks, results := h.reserve(r)
		if err := h.lines.Wait(t.Context(), checks, results); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyTheLastReservationOfAllProcessesGoesBackToTheServer(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b, _ := backend(t, server.Addr)
	h := newHeld(t)
	r := onePerSecond(b)
	r.Limits[0].Window = time.Hour
	r.Queue.MaxWait = 20 * time.Hour
	waiting := func() int64 {
		got, err := h.engine.Decide(t.Context(), []limiter.Check{{Rule: r, Key: "k"}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Limits[0].Current
	}
	h.reserve(r)
	leaveFirst, goneFirst := h.caller(r, 1)
	leaveSecond, goneSecond := h.caller(r, 2)
	another := limiter.NewEngine(memory.New(memory.Options{}))
	ask(t, another, r)
	leaveFirst()
	_ = goneFirst()
	if got := waiting(); got != 4 {
		t.Errorf("%d reserved, want 4: another process reserved after the one that left", got)
	}
	h.reserve(r)
	leaveSecond()
	_ = goneSecond()
	if got := waiting(); got != 5 {
		t.Errorf("%d reserved, want 5", got)
	}
	leaveLast, goneLast := h.caller(r, 1)
	leaveLast()
	_ = goneLast()
	for deadline := time.Now().Add(10 * time.Second); waiting() != 5; {
		if time.Now().After(deadline) {
			t.Fatalf("%d reserved, want 5: the last went back", waiting())
		}
	}
}
