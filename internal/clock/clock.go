// Package clock is the one source of time for code whose tests decide what time it is.
// It knows nothing of the rest of the project.
package clock

import "time"

// Clock tells the time and wakes callers. Implementations are safe for concurrent use.
type Clock interface {
	// Now is the time now; differences between two readings are monotonic.
	Now() time.Time
	// NewTimer fires once, after d.
	NewTimer(d time.Duration) Timer
}

// Timer is a timer of a Clock.
type Timer interface {
	// C receives the time at which the timer fired.
	C() <-chan time.Time
	// Stop keeps the timer from firing; it says whether it did.
	Stop() bool
}

// Real is the machine's clock.
func Real() Clock { return system{} }

type system struct{}

func (system) Now() time.Time { return time.Now() } //nolint:forbidigo // this is the clock

func (system) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} } //nolint:forbidigo // this is the clock

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }
