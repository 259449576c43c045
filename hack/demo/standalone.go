package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/hack/testbed"
)

const (
	alone      = "stand-alone"
	readyAfter = 10 * time.Second
)

// standalone builds the sidecar, puts it before the shop with the sample policy and its own memory, and calls.
func (d *demo) standalone(ctx context.Context) error {
	d.out.line("building the sidecar and the shop (a few minutes the first time, then seconds)")
	if err := testbed.Follow(ctx, "", d.out.block, "make", "--no-print-directory", "build", "COMMANDS=./cmd/sluice-sidecar", "shop"); err != nil {
		return err
	}
	policy, err := d.sample()
	if err != nil {
		return err
	}
	file := filepath.Join(d.dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return fmt.Errorf("write the policy: %w", err)
	}
	built := d.clock.Now()
	url, stop, err := d.startAlone(ctx, file)
	if err != nil {
		return err
	}
	defer func() {
		if err := stop(); err != nil {
			d.report.failed(alone+": the sidecar stops in order", err)
		}
	}()
	if err := d.showTiers(ctx, alone, url); err != nil {
		return err
	}
	d.out.line("the table was there %s after the build", d.clock.Now().Sub(built).Round(time.Millisecond))
	return d.editFile(ctx, file, policy, url)
}

// startAlone runs shop and sidecar on free ports.
func (d *demo) startAlone(ctx context.Context, policy string) (url string, stop func() error, err error) {
	ports, err := freePorts(3)
	if err != nil {
		return "", nil, err
	}
	shop, front, admin := ports[0], ports[1], ports[2]
	stopShop, err := start(ctx, filepath.Join(d.dir, "shop.log"), "bin/shop", "--listen", shop)
	if err != nil {
		return "", nil, err
	}
	sidecarLog := filepath.Join(d.dir, "sidecar.log")
	stopSidecar, err := start(ctx, sidecarLog, "bin/sluice-sidecar", "--policy", policy, "--listen", front,
		"--upstream", "http://"+shop, "--admin", admin)
	if err != nil {
		_ = stopShop()
		return "", nil, err
	}
	stop = func() error {
		err := stopSidecar()
		_ = stopShop()
		return err
	}
	took, err := testbed.Await(ctx, d.clock, readyAfter, func() (bool, error) {
		return ready(ctx, "http://"+admin+"/readyz") && ready(ctx, "http://"+shop+"/healthz"), nil
	})
	if err != nil {
		said, _ := os.ReadFile(sidecarLog) //nolint:gosec // a file of the demo's own folder
		_ = stop()
		return "", nil, fmt.Errorf("the sidecar is not ready: %w: it said: %s", err, said)
	}
	d.out.line("sidecar and shop are ready after %s", took.Round(time.Millisecond))
	return "http://" + front + "/", stop, nil
}

func ready(ctx context.Context, url string) bool {
	a, _ := call(ctx, newClient(), url, caller{name: "probe"}) // the body is no page, which does not matter
	return a.status == http.StatusOK
}

// editFile changes a limit while the sidecar runs, and measures when it holds.
func (d *demo) editFile(ctx context.Context, file, policy, url string) error {
	edited, err := replaceOnce(policy, sampleOldLimit, sampleNewLimit)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
		return fmt.Errorf("edit the policy: %w", err)
	}
	took, err := d.awaitLimit(ctx, url, newKnownLimit)
	if err != nil {
		return fmt.Errorf("the edited limit does not hold: %w", err)
	}
	return d.checkNewLimit(ctx, alone, url, took)
}

// awaitLimit calls until an answer carries the limit, as a caller of its own.
func (d *demo) awaitLimit(ctx context.Context, url string, limit int) (time.Duration, error) {
	watcher, err := d.bearer("watcher", "", authenticated)
	if err != nil {
		return 0, err
	}
	client := newClient()
	const patience = 30 * time.Second
	return testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		a, err := call(ctx, client, url, watcher)
		return a.limit == strconv.Itoa(limit), err
	})
}

// checkNewLimit calls as someone who never called before.
func (d *demo) checkNewLimit(ctx context.Context, part, url string, took time.Duration) error {
	late, err := d.bearer("late", "", authenticated)
	if err != nil {
		return err
	}
	t, err := burst(ctx, newClient(), url, late, newKnownLimit+callsOverLimit)
	if err != nil {
		return err
	}
	d.report.expect(t.inOrder(newKnownLimit), fmt.Sprintf("%s: an edit from %d to %d holds without a restart", part, knownLimit, newKnownLimit),
		"%s, in force %s after the edit", t.statuses(), took.Round(time.Millisecond))
	return nil
}

// freePorts finds addresses of this machine that nobody listens on.
func freePorts(n int) ([]string, error) {
	var addresses []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // returns at once
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = listener.Close() }() // all stay open until all are found, so they differ
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}
