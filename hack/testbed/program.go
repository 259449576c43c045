package testbed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// stopPatience is how long a program may take to stop when it is asked to.
const stopPatience = 30 * time.Second

// Command prepares a program that is interrupted, not killed, when ctx ends.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the callers name the programs
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	return cmd
}

// Follow runs a program in a folder and hands over each line it writes as it comes, and a sign of life where it is silent.
func Follow(ctx context.Context, dir string, show func(line string), name string, args ...string) error {
	cmd := Command(ctx, name, args...)
	cmd.Dir = dir
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	lines, ended := make(chan string), make(chan error, 1)
	go scan(reader, lines)
	go func() {
		ended <- cmd.Run()
		_ = writer.Close()
	}()
	relay(lines, show)
	if err := <-ended; err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

func scan(from io.Reader, lines chan<- string) {
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		lines <- scanner.Text()
	}
	_, _ = io.Copy(io.Discard, from) // past a line that is too long
	close(lines)
}

// relay shows lines until they end.
func relay(lines <-chan string, show func(string)) {
	const silence = 15 * time.Second
	for {
		timer := clock.Real().NewTimer(silence)
		select {
		case line, more := <-lines:
			timer.Stop()
			if !more {
				return
			}
			show(line)
		case <-timer.C():
			show("… still at it")
		}
	}
}

// Output runs a program quietly and returns what it printed. An error carries what it complained of.
func Output(ctx context.Context, dir, stdin, name string, args ...string) (string, error) {
	cmd := Command(ctx, name, args...)
	var out, complaints bytes.Buffer
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// ErrTooLong tells that what was waited for did not happen in time.
var ErrTooLong = errors.New("it took too long")

// Await asks again and again until done says so, and returns how long that took. The last error of done says why not.
func Await(ctx context.Context, c clock.Clock, patience time.Duration, done func() (bool, error)) (time.Duration, error) {
	const pause = 20 * time.Millisecond
	began := c.Now()
	for {
		finished, err := done()
		elapsed := c.Now().Sub(began)
		switch {
		case finished:
			return elapsed, nil
		case elapsed > patience && err != nil:
			return elapsed, fmt.Errorf("after %s: %w", patience, err)
		case elapsed > patience:
			return elapsed, fmt.Errorf("after %s: %w", patience, ErrTooLong)
		}
		timer := c.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return elapsed, ctx.Err()
		}
	}
}
