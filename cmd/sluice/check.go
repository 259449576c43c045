package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-dev/sluice/internal/compile"
)

// stdinName is how a user says "standard input".
const stdinName = "-"

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE…",
		Short: "Check policies in YAML files as the cluster would, without one",
		Long: `Check policies in YAML files as the cluster would, without one.

The files may also hold the Secrets and ConfigMaps that the policies refer to; - is standard input. Every mistake is
a line that names the field. Warnings do not change the exit code.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("check: no file is given")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := readFiles(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			return check(cmd.OutOrStdout(), cmd.ErrOrStderr(), files)
		},
	}
}

func readFiles(stdin io.Reader, names []string) ([]compile.File, error) {
	files := make([]compile.File, 0, len(names))
	for _, name := range names {
		var data []byte
		var err error
		if name == stdinName {
			data, err = io.ReadAll(stdin)
		} else {
			data, err = os.ReadFile(name) //nolint:gosec // the user names the files
		}
		if err != nil {
			return nil, fmt.Errorf("check: %w", err)
		}
		files = append(files, compile.File{Name: name, Data: data})
	}
	return files, nil
}

// check writes a line for each policy, and one for each mistake in it.
func check(stdout, stderr io.Writer, files []compile.File) error {
	read, err := compile.ReadFiles(files)
	if err != nil {
		return err
	}
	var failure error
	for _, p := range read.Policies {
		name := compile.Name(p.Namespace, p.Name)
		defaulted := p.DeepCopy()
		compile.Default(defaulted)
		mistakes := compile.Validate(defaulted)
		for _, m := range mistakes {
			_, _ = fmt.Fprintf(stderr, "%s: %s\n", name, m)
		}
		for _, w := range compile.Warnings(defaulted) {
			_, _ = fmt.Fprintf(stderr, "%s: warning: %s\n", name, w)
		}
		if len(mistakes) > 0 {
			failure = errShown
			continue
		}
		_, _ = fmt.Fprintf(stdout, "%s: ok\n", name)
	}
	if failure != nil {
		return failure
	}
	// What the policies refer to may well be in the cluster only.
	_, err = read.Inputs("")
	if errors.Is(err, compile.ErrReference) {
		_, _ = fmt.Fprintf(stderr, "warning: %s\n", err)
		return nil
	}
	return err
}
