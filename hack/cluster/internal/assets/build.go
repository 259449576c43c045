package assets

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// builder turns packages into binaries. Tests replace the go command by a fake.
type builder interface {
	// pending tells what is still to be compiled for the binaries, all of one
	// source: the size of the sources of each package.
	pending(ctx context.Context, binaries []Binary) (map[string]int64, error)
	// build writes the binary to out and reports each package whose compilation begins.
	build(ctx context.Context, b Binary, out string, began func(pkg string)) error
}

// goCommand builds with the go command and its build cache, without cgo, so that
// the binaries run on any distribution and in an empty image.
type goCommand struct{}

// staleFormat prints the packages that the build cache lacks, with their files.
const staleFormat = "{{if .Stale}}{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles \"\\t\"}}{{end}}"

func (goCommand) command(ctx context.Context, s *source, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are the catalog's
	cmd.Dir = s.absolute
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	return cmd
}

func (g goCommand) pending(ctx context.Context, binaries []Binary) (map[string]int64, error) {
	packages := make([]string, len(binaries))
	for i, b := range binaries {
		packages[i] = b.Package
	}
	cmd := g.command(ctx, binaries[0].source, append([]string{"list", "-deps", "-f", staleFormat}, packages...)...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing what is to be compiled: %w\n%s", err, lastLines(complaints.String(), 5))
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) > 2 {
			sizes[fields[0]] = sizeOf(fields[1], fields[2:])
		}
	}
	return sizes, nil
}

// sizeOf sums the sizes of a package's files; compiling takes time in proportion.
func sizeOf(dir string, files []string) int64 {
	var total int64
	for _, name := range files {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			total += info.Size()
		}
	}
	return total
}

func (g goCommand) build(ctx context.Context, b Binary, out string, began func(pkg string)) error {
	cmd := g.command(ctx, b.source, "build", "-v", "-ldflags="+b.source.flags(b.source.version), "-o", out, b.Package)
	messages, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("reading the go command's messages: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the go command: %w", err)
	}
	complaints := follow(messages, began)
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("go build %s: %w", b.Package, err), complaints)
	}
	return nil
}

// follow tells package names, which stand alone on a line, from complaints,
// which never do, and returns the last of the complaints.
func follow(messages io.Reader, began func(pkg string)) error {
	var complaints strings.Builder
	lines := bufio.NewScanner(messages)
	for lines.Scan() {
		if line := lines.Text(); strings.ContainsAny(line, " #:") {
			complaints.WriteString(line + "\n")
		} else {
			began(line)
		}
	}
	if complaints.Len() == 0 {
		return nil
	}
	return errors.New(lastLines(complaints.String(), 10))
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
