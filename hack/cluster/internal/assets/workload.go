package assets

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

const (
	// linkSize is what linking one binary is worth, in bytes of source compiled in the same time.
	linkSize = 1 << 20
	// compileRate is how many bytes of source one core compiles in a second, until this
	// machine has shown its own rate.
	compileRate = 100_000
	// usefulCores is how many cores a build of this shape keeps busy.
	usefulCores = 8
)

// workload follows the building of several binaries: what is done, what is left.
type workload struct {
	log   *progress.Log
	start time.Duration

	mu       sync.Mutex
	sizes    map[string]int64
	estimate *progress.Estimate
	current  string
	n, of    int
}

// survey finds out how much there is to compile for the binaries.
func (p *Provider) survey(ctx context.Context, binaries []Binary) (*workload, error) {
	w := &workload{log: p.log, start: p.log.Elapsed(), sizes: map[string]int64{}}
	total := int64(len(binaries)) * linkSize
	for _, group := range bySource(binaries) {
		sizes, err := p.builder.pending(ctx, group)
		if err != nil {
			return nil, err
		}
		for pkg, size := range sizes {
			w.sizes[pkg] = size
			total += size
		}
	}
	w.estimate = progress.NewEstimate(total, float64(compileRate*min(runtime.NumCPU(), usefulCores)))
	return w, nil
}

func bySource(binaries []Binary) [][]Binary {
	var groups [][]Binary
	for _, b := range binaries {
		if last := len(groups) - 1; last >= 0 && groups[last][0].source == b.source {
			groups[last] = append(groups[last], b)
		} else {
			groups = append(groups, []Binary{b})
		}
	}
	return groups
}

// biggest says whether the work is worth announcing.
func (w *workload) biggest() bool {
	return w.estimate.Left(0) > 20*time.Second
}

// next notes which binary is being built now.
func (w *workload) next(b Binary, n, of int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current, w.n, w.of = b.Name, n, of
	w.log.Printf("%s (%d of %d)", b.Name, n, of)
}

// began counts a package once, though several binaries hold it.
func (w *workload) began(pkg string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.estimate.Add(w.sizes[pkg])
	delete(w.sizes, pkg)
}

// linked counts a finished binary.
func (w *workload) linked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.estimate.Add(linkSize)
}

// report writes a progress line at a steady pace until it is stopped.
func (w *workload) report(ctx context.Context, c clock.Clock, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c.Sleep(ctx, every) == nil {
			w.line()
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// line says where the work stands.
func (w *workload) line() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.Printf("%s (%d of %d), %d %% of all done, %s left",
		w.current, w.n, w.of, w.estimate.Percent(), progress.About(w.estimate.Left(w.log.Elapsed()-w.start)))
}
