package redis

import (
	"errors"
	"testing"

	"github.com/sluice-dev/sluice/limiter"
)

// held is a lane whose batches wait until they are let go.
func held(t *testing.T) (l *lane, sent chan []*call, release chan struct{}) {
	t.Helper()
	sent, release = make(chan []*call), make(chan struct{})
	l = newLane(func(batch []*call) {
		sent <- batch
		<-release
	}, func(*call, int) {})
	return l, sent, release
}

func checkOf(key string, cost int64) []limiter.Check {
	return []limiter.Check{{Key: key, Cost: cost}}
}

func mustJoin(t *testing.T, l *lane, checks []limiter.Check) (*call, int) {
	t.Helper()
	c, number, err := l.join(checks)
	if err != nil {
		t.Fatal(err)
	}
	return c, number
}

func TestWhoeverWaitsWhileABatchIsOnItsWayGoesWithTheNext(t *testing.T) {
	t.Parallel()
	l, sent, release := held(t)
	mustJoin(t, l, checkOf("lone", 1))
	if first := <-sent; len(first) != 1 || first[0].callers() != 1 {
		t.Fatalf("a lone caller went with %d calls", len(first))
	}
	for range 3 {
		mustJoin(t, l, checkOf("a", 1))
	}
	mustJoin(t, l, checkOf("a", 2))
	mustJoin(t, l, checkOf("b", 1))
	release <- struct{}{}
	next := <-sent
	release <- struct{}{}
	l.close()
	if len(next) != 3 || next[0].callers() != 3 || next[1].callers() != 1 || next[2].callers() != 1 {
		t.Errorf("%d calls in the next batch, want a for three, a at another cost, and b", len(next))
	}
}

func TestWhoLeavesBeforeTheBatchIsNotCounted(t *testing.T) {
	t.Parallel()
	l, sent, release := held(t)
	mustJoin(t, l, checkOf("lone", 1))
	<-sent
	numbers := make([]int, 0, 4)
	var c *call
	for range 4 {
		joined, number := mustJoin(t, l, checkOf("a", 1))
		c, numbers = joined, append(numbers, number)
	}
	gone, number := mustJoin(t, l, checkOf("b", 1))
	l.leave(gone, number, false)
	l.leave(c, numbers[1], false)
	release <- struct{}{}
	next := <-sent
	release <- struct{}{}
	l.close()
	if len(next) != 1 || next[0].callers() != 3 {
		t.Fatalf("%d calls, want one of three callers", len(next))
	}
	for i, n := range []int{0, 2, 3} {
		if got := c.place(numbers[n]); got != i {
			t.Errorf("caller %d has place %d, want %d", n, got, i)
		}
	}
}

func TestALaneIsBounded(t *testing.T) {
	t.Parallel()
	l, sent, release := held(t)
	mustJoin(t, l, checkOf("lone", 1))
	<-sent
	for range maxWaiting {
		mustJoin(t, l, checkOf("a", 1))
	}
	if _, _, err := l.join(checkOf("a", 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("one too many got %v, want ErrBusy", err)
	}
	release <- struct{}{}
	for _, c := range <-sent {
		if c.callers() > maxCallers {
			t.Errorf("%d callers in one call", c.callers())
		}
	}
	release <- struct{}{}
	l.close()
	if _, _, err := l.join(checkOf("a", 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v, want ErrClosed", err)
	}
}
