package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/assets"
	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

// Tools is what every operation on a cluster needs around it.
type Tools struct {
	Catalog  *assets.Catalog
	Registry Registry
	Log      *progress.Log
	Clock    clock.Clock
}

// Cluster is one cluster of this machine, being started, used or ended.
type Cluster struct {
	Tools

	mu    sync.Mutex
	state *State
	// broken is told when a process ends that should run on.
	broken context.CancelCauseFunc
}

// FailureError says what did not come about, and in which log the reason may stand.
type FailureError struct {
	What, Log string
	Err       error
}

func (e *FailureError) Error() string { return e.What + ": " + e.Err.Error() }

func (e *FailureError) Unwrap() error { return e.Err }

// start starts a process and records it.
func (c *Cluster) start(s host.Spec) error {
	p, err := host.Start(s, c.ended)
	if p.PID != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.state.Processes = append(c.state.Processes, p)
		err = errors.Join(err, c.Registry.Save(c.state))
	}
	return err
}

// ended breaks off what waits for the process.
func (c *Cluster) ended(p host.Process, err error) {
	if err == nil {
		err = errors.New("it ended without a complaint")
	}
	c.broken(&FailureError{What: p.Name + " did not stay up", Log: p.Log, Err: err})
}

// await tries again and again until it works, something breaks or patience runs
// out; the last error is then the reason.
func (c *Cluster) await(ctx context.Context, what, log string, patience time.Duration, try func(context.Context) error) error {
	const pace = 100 * time.Millisecond
	inTime, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(inTime)
		if err == nil {
			return nil
		}
		if c.Clock.Sleep(inTime, pace) == nil {
			continue
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return &FailureError{What: fmt.Sprintf("%s after %s", what, progress.Short(patience)), Log: log, Err: err}
	}
}

// together runs tasks side by side and returns the first error, after all have ended.
func together(ctx context.Context, tasks ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { results <- task(ctx) }()
	}
	var first error
	for range tasks {
		if err := <-results; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// inOrder runs tasks one after the other until one fails.
func inOrder(ctx context.Context, tasks ...func(context.Context) error) error {
	for _, task := range tasks {
		if err := task(ctx); err != nil {
			return err
		}
	}
	return nil
}
