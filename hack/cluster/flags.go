package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/cluster/internal/assets"
	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

// usageError is a command line that cannot be understood.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func wrongUsage(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// errHelpShown ends a command whose help was asked for.
var errHelpShown = errors.New("help shown")

// invocation is one call of a command.
type invocation struct {
	name           string
	args           []string
	stdout, stderr io.Writer
}

// command carries out one invocation.
type command func(ctx context.Context, call invocation) error

// flags starts the flag set of a command; synopsis and about make up its help.
func (i invocation) flags(synopsis, about string) *flag.FlagSet {
	set := flag.NewFlagSet(i.name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {
		_, _ = fmt.Fprintf(i.stdout, "Usage: go run ./hack/cluster %s %s\n\n%s\n\nFlags:\n", i.name, synopsis, about)
		set.SetOutput(i.stdout)
		set.PrintDefaults()
		set.SetOutput(io.Discard)
	}
	return set
}

// parse reads the flags, which may stand before and after the operands, and
// returns the operands.
func (i invocation) parse(set *flag.FlagSet, atMost int) ([]string, error) {
	var operands []string
	for rest := i.args; ; {
		err := set.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			return nil, errHelpShown
		}
		if err != nil {
			return nil, wrongUsage("%s: %v; try %s --help", i.name, err, i.name)
		}
		rest = set.Args()
		if len(rest) == 0 {
			break
		}
		operands = append(operands, rest[0])
		rest = rest[1:]
	}
	if len(operands) > atMost {
		return nil, wrongUsage("%s: what is %q? try %s --help", i.name, strings.Join(operands[atMost:], " "), i.name)
	}
	return operands, nil
}

// log writes progress where it does not mix with what a script reads.
func (i invocation) log() *progress.Log {
	return progress.NewLog(i.stderr, clock.Wall{})
}

// several is a flag that may be given more than once.
type several []string

func (s *several) String() string { return strings.Join(*s, " ") }

// Set implements flag.Value.
func (s *several) Set(value string) error {
	*s = append(*s, value)
	return nil
}

// catalog finds the pins in the repository and the binaries in the cache.
func catalog() (*assets.Catalog, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	cache, err := assets.CacheDir(os.Getenv)
	if err != nil {
		return nil, err
	}
	return assets.Load(root, cache)
}

// repositoryRoot is the nearest folder upwards that holds the pins.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working folder: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "hack", "kubernetes", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout of the project", dir)
		}
	}
}
