package intercept

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Exit codes of Run.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `Redirects inbound TCP connections of this network namespace to the sidecar.

  sluice-init --ports 8080,9090 [--to 15100]
`

// Run is the program sluice-init, also known as "sluice-sidecar init": it takes the arguments after the
// program's name, reports to standard error and returns the exit code (0 done, 1 failed, 2 wrong usage).
func Run(args []string) int {
	return run(args, os.Stderr, Redirect)
}

func run(args []string, stderr io.Writer, redirect func([]uint16, uint16) error) int {
	ports, to, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		report(stderr, err)
		return exitUsage
	}
	if err := redirect(ports, to); err != nil {
		report(stderr, err)
		return exitFailed
	}
	return exitDone
}

func report(stderr io.Writer, err error) {
	fmt.Fprintf(stderr, "sluice-init: %v\n", err)
}

func parse(args []string, stderr io.Writer) (ports []uint16, to uint16, err error) {
	flags := flag.NewFlagSet("sluice-init", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	list := flags.String("ports", "", "")
	target := flags.String("to", "15100", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		return nil, 0, err
	case err != nil:
		return nil, 0, err
	case flags.NArg() > 0:
		return nil, 0, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *list == "":
		return nil, 0, errors.New("--ports is required, such as --ports 8080,9090")
	}
	if to, err = parsePort(*target); err != nil {
		return nil, 0, fmt.Errorf("--to: %w", err)
	}
	for text := range strings.SplitSeq(*list, ",") {
		port, err := parsePort(text)
		if err != nil {
			return nil, 0, fmt.Errorf("--ports: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, to, nil
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is not a port from 1 to 65535", text)
	}
	return uint16(port), nil
}
