package limiter

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// failuresToOpen is how many calls in a row must fail before the store is left alone.
	failuresToOpen = 3
	// openFor is how long it is left alone before one call probes it.
	openFor = time.Second
)

// Observer hears what an operator of the process would count.
type Observer interface {
	// RoundTrip: a batch of calls was sent to the store.
	RoundTrip(store string)
	// StoreError: it did not answer, for one of a few reasons: timeout, unreachable, refused, error.
	StoreError(store, reason string)
	// CircuitOpen: it is left alone, or asked again.
	CircuitOpen(store string, open bool)
}

// Backend is a store that may fail: after some failures in a row it is left alone for a moment, so that requests don't
// wait for their time-out one after the other, and then one call probes it.
type Backend struct {
	name     string
	store    Store
	hybrid   Store // decides rules in mode Hybrid; nil = as the others
	observer Observer
	failure  atomic.Value // the last error, as text
	breaker  *gobreaker.CircuitBreaker[[]Result]
}

// NewBackend wraps a store. Each transition is reported to the observer and logged in one line.
func NewBackend(name string, store Store, observer Observer, log *slog.Logger) *Backend {
	b := &Backend{name: name, store: store, observer: observer}
	b.breaker = gobreaker.NewCircuitBreaker[[]Result](gobreaker.Settings{
		Name: name, MaxRequests: 1, Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failuresToOpen },
		// A caller that left says nothing about the store.
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
		// A probe that fails opens the breaker again, which is no news.
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
				observer.CircuitOpen(name, true)
				log.Warn("store fails, onStoreFailure decides until it answers", "store", name, "error", b.failure.Load())
			case to == gobreaker.StateClosed:
				observer.CircuitOpen(name, false)
				log.Info("store answers again", "store", name)
			}
		},
	})
	return b
}

// Probe asks a store whether it answers, so that a dead one is known before the first request has to find out.
func (b *Backend) Probe(ctx context.Context, ping func(context.Context) error) {
	for range failuresToOpen {
		_, err := b.breaker.Execute(func() ([]Result, error) { return nil, b.noted(ping(ctx)) })
		if err == nil {
			return
		}
	}
}

func (b *Backend) noted(err error) error {
	if err != nil {
		b.failure.Store(err.Error())
		b.observer.StoreError(b.name, reason(err))
	}
	return err
}

// Name is the store's name.
func (b *Backend) Name() string { return b.name }

func (b *Backend) decide(ctx context.Context, checks []Check) ([]Result, error) {
	if b.hybrid != nil && slices.ContainsFunc(checks, func(c Check) bool { return c.Rule.Mode == Hybrid }) {
		return b.hybrid.Decide(ctx, checks) //nolint:wrapcheck // it is what the store would have been
	}
	return b.ask(ctx, checks)
}

func (b *Backend) ask(ctx context.Context, checks []Check) ([]Result, error) {
	return b.breaker.Execute(func() ([]Result, error) {
		results, err := b.store.Decide(ctx, checks)
		if err != nil && ctx.Err() == nil {
			return nil, b.noted(err)
		}
		return results, err
	})
}

func reason(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "timeout"
	case isA[*net.OpError](err), errors.Is(err, io.EOF):
		return "unreachable"
	case isA[interface {
		error
		RedisError()
	}](err):
		return "refused"
	default:
		return "error"
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
