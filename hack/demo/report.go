package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// log writes lines that begin with the time since the demo began. It may be used by several goroutines.
type log struct {
	mu    sync.Mutex
	out   io.Writer
	clock clock.Clock
	start time.Time
}

func newLog(out io.Writer, c clock.Clock) *log { return &log{out: out, clock: c, start: c.Now()} }

func (l *log) line(format string, args ...any) {
	elapsed := l.clock.Now().Sub(l.start).Truncate(time.Second)
	l.write(fmt.Sprintf("[%5s] %s\n", elapsed, fmt.Sprintf(format, args...)))
}

func (l *log) heading(text string) { l.write("\n== " + text + "\n") }

// block shows the output of a command, or a table, as it is.
func (l *log) block(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		l.write("        " + line)
	}
}

// write ignores errors: whoever closed the demo's output does not want it.
func (l *log) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.out, text)
}

// check is one thing that was shown to be so, or not.
type check struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail,omitempty"`
}

// report gathers the checks of one run.
type report struct {
	out    *log
	checks []check
}

// expect notes a check. The detail says what was seen.
func (r *report) expect(passed bool, name, detail string, args ...any) {
	c := check{Name: name, Passed: passed, Detail: fmt.Sprintf(detail, args...)}
	r.checks = append(r.checks, c)
	mark := "ok    "
	if !passed {
		mark = "FAILED"
	}
	r.out.line("%s %s: %s", mark, c.Name, c.Detail)
}

func (r *report) failed(name string, err error) { r.expect(false, name, "%s", err) }

func (r *report) count(passed bool) int {
	n := 0
	for _, c := range r.checks {
		if c.Passed == passed {
			n++
		}
	}
	return n
}

func (r *report) summary() {
	r.out.write(fmt.Sprintf("\ndemo: %d checks passed, %d failed\n", r.count(true), r.count(false)))
}

// write puts the checks into a file as JSON: {"passed": n, "failed": n, "checks": [{"name", "passed", "detail"}]}.
func (r *report) write(path string) error {
	checks := r.checks
	if checks == nil {
		checks = []check{}
	}
	text, err := json.MarshalIndent(map[string]any{
		"passed": r.count(true), "failed": r.count(false), "checks": checks,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the checks: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil { //nolint:gosec // a report for everyone to read
		return fmt.Errorf("write the checks: %w", err)
	}
	return nil
}
