package assets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

// Provider makes sure that the catalog's binaries are there.
type Provider struct {
	catalog *Catalog
	log     *progress.Log
	clock   clock.Clock
	builder builder
	fetch   fetcher
	// every is the pace of progress lines while something is being built.
	every time.Duration
}

// NewProvider returns a provider that uses prebuilt binaries where they can be
// had and the go command otherwise.
func NewProvider(catalog *Catalog, log *progress.Log, c clock.Clock) *Provider {
	return &Provider{catalog: catalog, log: log, clock: c, builder: goCommand{}, fetch: setupEnvtest, every: 10 * time.Second}
}

// Ensure provides every binary of the set that is missing. Each is written
// under a temporary name and renamed when it is whole, so that an interrupted
// run goes on where it stopped. Two runs at once wait for each other.
func (p *Provider) Ensure(ctx context.Context, set Set) error {
	if len(p.catalog.Missing(set)) == 0 {
		p.log.Printf("nothing to build: %s", p.inventory(set))
		return nil
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	p.takePrebuilt(ctx)
	missing := p.catalog.Missing(set)
	if len(missing) == 0 {
		p.log.Printf("nothing left to build: %s", p.inventory(set))
		return nil
	}
	if err := p.buildAll(ctx, missing); err != nil {
		return err
	}
	p.log.Printf("built: %s", p.inventory(set))
	return nil
}

func (p *Provider) inventory(set Set) string {
	where := p.catalog.cache
	if set == Envtest {
		where = p.catalog.EnvtestDir()
	}
	return fmt.Sprintf("all %d binaries are in %s", len(p.catalog.of(set)), where)
}

// lock keeps a second run from building the same. The kernel drops the lock
// with the process, whichever way that ends.
func (p *Provider) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(p.catalog.cache, 0o750); err != nil {
		return nil, fmt.Errorf("making the cache folder: %w", err)
	}
	name := filepath.Join(p.catalog.cache, "assets.lock")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // a name of our own
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	if err := p.hold(ctx, file); err != nil {
		return nil, errors.Join(fmt.Errorf("taking the lock: %w", err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// hold takes the lock as soon as nobody else has it. It asks again and again,
// since a call that waits could not be interrupted.
func (p *Provider) hold(ctx context.Context, file *os.File) error {
	const pace = 200 * time.Millisecond
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if !told {
			p.log.Printf("waiting for another run that is building into %s", p.catalog.cache)
		}
		if p.clock.Sleep(ctx, pace) != nil {
			return context.Cause(ctx)
		}
	}
}

// buildAll builds the missing binaries one after the other; the go command
// itself uses every core.
func (p *Provider) buildAll(ctx context.Context, missing []Binary) error {
	work, err := p.survey(ctx, missing)
	if err != nil {
		return err
	}
	if work.biggest() {
		p.log.Printf("building %d binaries from source, this once: %s on this machine",
			len(missing), progress.About(work.estimate.Left(0)))
	}
	for i, b := range missing {
		work.next(b, i+1, len(missing))
		if err := p.buildOne(ctx, b, work); err != nil {
			return fmt.Errorf("building %s: %w", b.Name, err)
		}
	}
	return nil
}

// buildOne builds one binary and reports the progress at a steady pace meanwhile.
func (p *Provider) buildOne(ctx context.Context, b Binary, work *workload) error {
	if err := os.MkdirAll(filepath.Dir(b.path), 0o750); err != nil {
		return fmt.Errorf("making its folder: %w", err)
	}
	stop := work.report(ctx, p.clock, p.every)
	defer stop()
	unfinished := b.path + ".unfinished"
	if err := p.builder.build(ctx, b, unfinished, work.began); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w; the next run goes on from here", cause)
		}
		return err
	}
	work.linked()
	if err := os.Rename(unfinished, b.path); err != nil {
		return fmt.Errorf("putting it in place: %w", err)
	}
	return nil
}
