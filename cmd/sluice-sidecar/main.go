// Command sluice-sidecar limits the requests to the application behind it. In a cluster the operator pushes its rules;
// stand-alone it reads them from files. `sluice-sidecar init` is the init container that redirects traffic to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-dev/sluice/internal/intercept"
)

var version = "dev"

const (
	exitStart = 1
	exitUsage = 2
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	if filepath.Base(args[0]) == "sluice-init" {
		return intercept.Run(args[1:])
	}
	if len(args) > 1 && args[1] == "init" {
		return intercept.Run(args[2:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := newCommand()
	cmd.SetArgs(args[1:])
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "sluice-sidecar: "+strings.Join(strings.Fields(err.Error()), " "))
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitStart
}

// errUsage tells that the command line is wrong.
var errUsage = errors.New("see --help")

func usage(format string, args ...any) error {
	return fmt.Errorf("%s; %w", fmt.Sprintf(format, args...), errUsage)
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sluice-sidecar --policy FILE --upstream URL [flags]",
		Short: "Limit the requests to the application behind it",
		Long: `Limit the requests to the application behind it.

Stand-alone, it reads RateLimitPolicies (and the Secrets and ConfigMaps they refer to) from YAML files, as
kubectl apply would take them, and reads them again when they change. In a cluster, the operator's webhook adds it
to pods and the operator pushes its rules.

Exit codes: 0 stopped by a signal, 1 cannot start, 2 wrong usage.`,
		Version: version, SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unexpected argument %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return serve(cmd.Context(), &o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	cmd.CompletionOptions.DisableDefaultCmd = true
	o.bind(cmd.Flags())
	return cmd
}
