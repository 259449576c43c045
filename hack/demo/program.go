package main

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

// command prepares a program that is interrupted, not killed, when ctx ends.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the demo names its programs
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	return cmd
}

// follow runs a program and shows each line it writes as it comes, and a sign of life where it is silent.
func (d *demo) follow(ctx context.Context, name string, args ...string) error {
	cmd := command(ctx, name, args...)
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	lines, ended := make(chan string), make(chan error, 1)
	go scan(reader, lines)
	go func() {
		ended <- cmd.Run()
		_ = writer.Close()
	}()
	d.relay(lines)
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
func (d *demo) relay(lines <-chan string) {
	const silence = 15 * time.Second
	for {
		timer := d.clock.NewTimer(silence)
		select {
		case line, more := <-lines:
			timer.Stop()
			if !more {
				return
			}
			d.out.block(line)
		case <-timer.C():
			d.out.line("… still at it")
		}
	}
}

// output runs a program quietly and returns what it printed. An error carries what it complained of.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := command(ctx, name, args...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// start runs a program until stop is called. Its output goes to a file.
func start(ctx context.Context, logFile, name string, args ...string) (stop func() error, err error) {
	file, err := os.Create(logFile) //nolint:gosec // a file of the demo's own folder
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), file.Close())
	}
	return func() error {
		cancel()
		err := cmd.Wait()
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return errors.Join(err, file.Close())
	}, nil
}

var errTooLong = errors.New("it took too long")

// await asks again and again until done says so, and returns how long that took. The last error of done says why not.
func await(ctx context.Context, c clock.Clock, patience time.Duration, done func() (bool, error)) (time.Duration, error) {
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
			return elapsed, fmt.Errorf("after %s: %w", patience, errTooLong)
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
