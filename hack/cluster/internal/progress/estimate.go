package progress

import (
	"fmt"
	"time"
)

// Estimate foretells when a known amount of work will be done. It starts from a
// rate measured elsewhere and trusts it less the longer this machine has shown
// its own.
type Estimate struct {
	total, done int64
	// prior is what the rate was elsewhere, in units a second.
	prior float64
}

// trust is how long the rate measured elsewhere counts as much as the one seen here.
const trust = 20 * time.Second

// NewEstimate starts an estimate of total units at an expected rate, in units a
// second.
func NewEstimate(total int64, expected float64) *Estimate {
	return &Estimate{total: total, prior: max(expected, 1)}
}

// Add notes that n more units are done. More than the total counts as the total.
func (e *Estimate) Add(n int64) {
	e.done = min(e.done+n, e.total)
}

// Percent is the share that is done, rounded down.
func (e *Estimate) Percent() int {
	if e.total == 0 {
		return 100
	}
	return int(e.done * 100 / e.total)
}

// Left is how long the rest will take, seen after elapsed.
func (e *Estimate) Left(elapsed time.Duration) time.Duration {
	seconds := trust.Seconds() + elapsed.Seconds()
	rate := (e.prior*trust.Seconds() + float64(e.done)) / seconds
	return time.Duration(float64(e.total-e.done) / rate * float64(time.Second))
}

// About writes an estimate no finer than it deserves: whole minutes, or tens of
// seconds under two minutes.
func About(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "a few seconds"
	case d < 2*time.Minute:
		return fmt.Sprintf("about %.0f s", d.Round(10*time.Second).Seconds())
	default:
		return fmt.Sprintf("about %.0f min", d.Round(time.Minute).Minutes())
	}
}
