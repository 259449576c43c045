package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// setupEnvtestModule downloads the programs that envtest needs, where its source can be reached.
const setupEnvtestModule = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"

// prebuiltPatience is how long prebuilt binaries may take to arrive; building
// them takes minutes, so it is worth a little.
const prebuiltPatience = 90 * time.Second

// fetcher gets the prebuilt binaries of a Kubernetes version and returns the
// folder they are in.
type fetcher func(ctx context.Context, version, into string) (string, error)

// takePrebuilt puts prebuilt binaries in place of those that would have to be
// built for envtest. Where there are none it says so once, and the build goes on.
func (p *Provider) takePrebuilt(ctx context.Context) {
	missing := p.catalog.Missing(Envtest)
	if len(missing) == 0 {
		return
	}
	version := missing[0].source.version
	if err := p.fetchAndPlace(ctx, version, missing); err != nil {
		p.log.Printf("no prebuilt binaries of Kubernetes %s to be had here (%v): building them", version, err)
		return
	}
	p.log.Printf("took %d prebuilt binaries of Kubernetes %s", len(missing), version)
}

func (p *Provider) fetchAndPlace(ctx context.Context, version string, missing []Binary) error {
	if os.Getenv("SLUICE_PREBUILT") == "never" {
		return errors.New("SLUICE_PREBUILT=never")
	}
	download, err := os.MkdirTemp(p.catalog.cache, "prebuilt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(download)
	ctx, cancel := context.WithTimeoutCause(ctx, prebuiltPatience, fmt.Errorf("no answer within %s", prebuiltPatience))
	defer cancel()
	folder, err := p.fetch(ctx, strings.TrimPrefix(version, "v"), download)
	if err != nil {
		return err
	}
	for _, b := range missing {
		if err := place(filepath.Join(folder, b.Name), b.path); err != nil {
			return err
		}
	}
	return nil
}

// place copies a binary under a temporary name and renames it when it is whole.
func place(from, to string) error {
	in, err := os.Open(from) //nolint:gosec // a file just downloaded
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
		return err
	}
	unfinished := to + ".unfinished"
	out, err := os.OpenFile(unfinished, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755) //nolint:gosec // a program
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Rename(unfinished, to)
}

// setupEnvtest is the fetcher that asks controller-runtime's own tool.
func setupEnvtest(ctx context.Context, version, into string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "run", setupEnvtestModule, "use", version, "--bin-dir", into, "-p", "path") //nolint:gosec // constant but for the pinned version
	cmd.WaitDelay = time.Second
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if cause := context.Cause(ctx); cause != nil {
		return "", cause
	}
	if err != nil {
		return "", errors.New(gist(complaints.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// gist cuts a tool's complaint down to its innermost reason: what stands last on
// its last line, but for the exit status that "go run" adds.
func gist(complaint string) string {
	complaint, _, _ = strings.Cut(complaint, "\nexit status")
	line := lastLines(complaint, 1)
	return strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:])
}
