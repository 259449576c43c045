// Command sluice is for people: it checks policies before they are applied, and says what a cluster enforces. Installed as
// kubectl-sluice it is a plugin of kubectl. It knows the API and its compiler, and nothing of the operator or the sidecar.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

var version = "dev"

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name := "sluice"
	if filepath.Base(args[0]) == "kubectl-sluice" {
		name = "kubectl sluice"
	}
	root := newRoot(name) //nolint:contextcheck // cobra hands the context to the commands
	root.SetArgs(args[1:])
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errShown):
		return exitFailed
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitFailed
}

var (
	// errUsage tells that the command line is wrong.
	errUsage = errors.New("see --help")
	// errShown tells that what is wrong has been said already.
	errShown = errors.New("already said")
)

func usage(format string, args ...any) error {
	return fmt.Errorf("%s; %w", fmt.Sprintf(format, args...), errUsage)
}

func newRoot(name string) *cobra.Command {
	root := &cobra.Command{
		Use:   name,
		Short: "Check rate-limit policies, and say what a cluster enforces",
		Long: `Check rate-limit policies, and say what a cluster enforces.

Exit codes: 0 all is well, 1 it is not, 2 wrong usage.`,
		Version: version, SilenceErrors: true, SilenceUsage: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newCheck(), newStatus())
	return root
}
