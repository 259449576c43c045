// Command cluster runs a real Kubernetes on this one machine, built from Go
// modules and Debian packages alone: no image registry, no download of
// binaries, no virtual machine. The project's demo and end-to-end tests stand
// on it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

const usage = `A real Kubernetes on this machine, without downloads.

Usage: go run ./hack/cluster COMMAND [flags]

Commands:
  assets       build the programs of a cluster into the cache folder, once
  up           start a cluster and wait until it is ready
  load         build an image from a local binary or a Dockerfile and put it on the nodes
  redis-image  put an image of this machine's Redis on the nodes
  status       show what runs
  down         end a cluster and remove every trace of it

"COMMAND --help" explains the flags of a command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot run a cluster.
("go run" turns every exit code but 0 into 1; "go build" the program to see them.)
`

// Exit codes beside 0.
const (
	exitFailed = 1
	exitUsage  = 2
	exitUnfit  = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var unfit *host.UnfitError
	var wrong *usageError
	switch {
	case err == nil, errors.Is(err, errHelpShown):
		return 0
	case errors.As(err, &unfit):
		complain(stderr, err)
		return exitUnfit
	case errors.As(err, &wrong):
		complain(stderr, err)
		return exitUsage
	default:
		complain(stderr, err)
		return exitFailed
	}
}

func complain(stderr io.Writer, err error) {
	_, _ = fmt.Fprintf(stderr, "cluster: %v\n", err)
}

func commands() map[string]command {
	return map[string]command{
		"assets":      runAssets,
		"up":          runUp,
		"load":        runLoad,
		"redis-image": runRedisImage,
		"status":      runStatus,
		"down":        runDown,
	}
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return wrongUsage("no command given; try --help")
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		_, err := io.WriteString(stdout, usage)
		return err
	}
	command, known := commands()[args[0]]
	if !known {
		return wrongUsage("no command %q; try --help", args[0])
	}
	return command(ctx, invocation{name: args[0], args: args[1:], stdout: stdout, stderr: stderr})
}
