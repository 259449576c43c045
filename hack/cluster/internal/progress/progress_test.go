package progress

import (
	"context"
	"strings"
	"testing"
	"time"
)

// handClock moves only when told to.
type handClock struct{ now time.Time }

func (c *handClock) Now() time.Time                             { return c.now }
func (c *handClock) Sleep(context.Context, time.Duration) error { return nil }
func (c *handClock) advance(d time.Duration)                    { c.now = c.now.Add(d) }

func TestLogLinesCarryTheElapsedTime(t *testing.T) {
	c := &handClock{now: time.Unix(1000, 0)}
	var out strings.Builder
	log := NewLog(&out, c)
	c.advance(3200 * time.Millisecond)
	log.Printf("node %d is ready", 0)
	if got, want := out.String(), "[  3.2s] node 0 is ready\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                              "0.0s",
		9900 * time.Millisecond:        "9.9s",
		59900 * time.Millisecond:       "59s",
		2*time.Minute + 5*time.Second:  "2m05s",
		time.Hour + 10*time.Minute + 1: "1h10m",
	} {
		if got := Short(d); got != want {
			t.Errorf("Short(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestAbout(t *testing.T) {
	for d, want := range map[time.Duration]string{
		3 * time.Second:   "a few seconds",
		84 * time.Second:  "about 80 s",
		510 * time.Second: "about 9 min",
	} {
		if got := About(d); got != want {
			t.Errorf("About(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestEstimateStartsFromTheExpectedRateAndLearns(t *testing.T) {
	e := NewEstimate(1000, 10)
	if got, want := e.Left(0), 100*time.Second; got != want {
		t.Errorf("at the start: %v left, want %v", got, want)
	}
	// This machine turns out to be five times slower.
	e.Add(200)
	if got := e.Left(100 * time.Second); got < 230*time.Second || got > 400*time.Second {
		t.Errorf("after 200 units in 100s: %v left, want between 230s and 400s", got)
	}
	if got := e.Percent(); got != 20 {
		t.Errorf("%d %%, want 20", got)
	}
	e.Add(5000)
	if e.Percent() != 100 || e.Left(time.Hour) != 0 {
		t.Errorf("more than everything done: %d %%, %v left", e.Percent(), e.Left(time.Hour))
	}
}
