// Command demo shows the whole of Sluice for real: first the stand-alone sidecar, then the operator, a store and a shop
// of three replicas in a local Kubernetes. It checks what it shows, and takes down all that it started.
//
// It knows Sluice as a user does: by its binaries, its manifests and its answers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-dev/sluice/hack/testbed"
	"github.com/sluice-dev/sluice/internal/clock"
)

const usage = `Shows the whole of Sluice for real, and checks what it shows.

Usage: go run ./hack/demo [--standalone-only]

Runs in the checkout's top folder. Environment:
  KEEP=1        leave the cluster running and say how to use it
  DEMO_OUT=FILE write the checks as JSON to FILE

Exit codes: 0 no check failed, 1 some did, 2 wrong usage.

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	set := flag.NewFlagSet("demo", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.Usage = func() { _, _ = io.WriteString(stderr, usage); set.PrintDefaults() }
	standaloneOnly := set.Bool("standalone-only", false, "show the stand-alone form alone: seconds, and no root")
	if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil || set.NArg() > 0 {
		return complain(stderr, 2, "demo: no arguments are taken; see --help")
	}
	if _, err := os.Stat("config/samples"); err != nil {
		return complain(stderr, 2, "demo: run it in the checkout's top folder, as make demo does")
	}
	d, err := newDemo(stdout)
	if err != nil {
		return complain(stderr, 1, "demo: "+err.Error())
	}
	defer d.close()
	d.show(ctx, *standaloneOnly)
	return d.finish(ctx, stderr)
}

func complain(stderr io.Writer, code int, message string) int {
	_, _ = fmt.Fprintln(stderr, message)
	return code
}

// demo is one run: where it writes, what it found, and what the callers hold.
type demo struct {
	out    *log
	report *report
	clock  clock.Clock
	issuer *issuer
	// dir is a scratch folder that goes with the demo.
	dir string
}

func newDemo(stdout io.Writer) (*demo, error) {
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a scratch folder: %w", err)
	}
	issuer, err := newIssuer()
	if err != nil {
		return nil, err
	}
	out := newLog(stdout, clock.Real())
	return &demo{out: out, report: &report{out: out}, clock: clock.Real(), issuer: issuer, dir: dir}, nil
}

func (d *demo) close() { _ = os.RemoveAll(d.dir) }

// show runs the parts. What can't go on is a failed check; the parts after it are still shown where they can be.
func (d *demo) show(ctx context.Context, standaloneOnly bool) {
	d.out.heading("Stand-alone: one sidecar, its own memory")
	if err := d.standalone(ctx); err != nil {
		d.report.failed("stand-alone part runs to its end", err)
	}
	if standaloneOnly || ctx.Err() != nil {
		return
	}
	d.out.heading("In a cluster: an operator, a store, a shop of three replicas")
	err := d.cluster(ctx)
	if unfit, is := errors.AsType[*testbed.UnfitError](err); is {
		d.out.line("the cluster part can't run here: %s", unfit.Why)
	} else if err != nil {
		d.report.failed("cluster part runs to its end", err)
	}
}

// finish prints and writes what was found.
func (d *demo) finish(ctx context.Context, stderr io.Writer) int {
	if ctx.Err() != nil {
		d.report.failed("the demo was let run to its end", ctx.Err())
	}
	if path := os.Getenv("DEMO_OUT"); path != "" {
		if err := d.report.write(path); err != nil {
			return complain(stderr, 1, "demo: "+err.Error())
		}
	}
	d.report.summary()
	if d.report.count(false) > 0 {
		return 1
	}
	return 0
}
