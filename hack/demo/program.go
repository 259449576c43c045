package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sluice-dev/sluice/hack/testbed"
)

// start runs a program until stop is called. Its output goes to a file.
func start(ctx context.Context, logFile, name string, args ...string) (stop func() error, err error) {
	file, err := os.Create(logFile) //nolint:gosec // a file of the demo's own folder
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := testbed.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), file.Close())
	}
	return func() error {
		cancel()
		err := cmd.Wait()
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return errors.Join(err, file.Close())
	}, nil
}
