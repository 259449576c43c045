package limiter_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
)

var errAway = errors.New("away")

// ill is a store that fails while it is ill.
type ill struct {
	limiter.Store
	is bool
}

func (s *ill) Decide(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	if s.is {
		return nil, errAway
	}
	return s.Store.Decide(ctx, checks)
}

// transitions counts how often the circuit is told to open and to close.
type transitions struct {
	heard
	opened, closed int
}

func (t *transitions) CircuitOpen(_ string, open bool) {
	if open {
		t.opened++
		return
	}
	t.closed++
}

func TestAStoreThatStaysAwayIsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		seen := &transitions{}
		store := &ill{Store: memory.New(memory.Options{}), is: true}
		b := limiter.NewBackend("ns/redis", store, seen, slog.New(slog.NewTextHandler(&log, nil)))
		b.Probe(t.Context(), func(context.Context) error { return errAway })
		e, r := limiter.NewEngine(memory.New(memory.Options{})), rule(b, limiter.FailAllow, 6)
		for range 10 {
			ask(t, e, r)
			time.Sleep(time.Second + time.Millisecond) // long enough for a probe
		}
		if seen.opened != 1 || strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "away") {
			t.Errorf("reported %d times open: %s", seen.opened, &log)
		}
		store.is = false
		if got := ask(t, e, r); got.Source != limiter.FromStore || seen.closed != 1 {
			t.Errorf("after the store came back: %+v, reported %d times closed", got, seen.closed)
		}
	})
}
