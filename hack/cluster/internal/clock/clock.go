// Package clock is where the local cluster's program reads the time and waits,
// so that everything else can be tested without doing either.
package clock

import (
	"context"
	"time"
)

// Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	// Sleep returns early, with the context's error, when ctx ends.
	Sleep(ctx context.Context, d time.Duration) error
}

// Wall is the machine's own clock.
type Wall struct{}

// Now implements Clock.
func (Wall) Now() time.Time {
	return time.Now() //nolint:forbidigo // the one place that reads the machine's clock
}

// Sleep implements Clock.
func (Wall) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d) //nolint:forbidigo // the one place that waits
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
