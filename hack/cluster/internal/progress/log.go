// Package progress tells whoever waits what is being done, how long it has
// taken and how long it may still take.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
)

// Log writes lines that begin with the time since the log was made. It may be
// used by several goroutines.
type Log struct {
	out   io.Writer
	clock clock.Clock
	start time.Time
	mu    sync.Mutex
}

// NewLog returns a log that counts from now.
func NewLog(out io.Writer, c clock.Clock) *Log {
	return &Log{out: out, clock: c, start: c.Now()}
}

// Printf writes one line. A failed write is not worth failing the work for.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = fmt.Fprintf(l.out, "[%6s] %s\n", Short(l.Elapsed()), fmt.Sprintf(format, args...))
}

// Elapsed is the time since the log was made.
func (l *Log) Elapsed() time.Duration {
	return l.clock.Now().Sub(l.start)
}

// Short writes a duration as a person would say it: 3.2s, 47s, 2m05s, 1h10m.
func Short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}
