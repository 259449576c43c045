// Package host is what the local cluster needs of the machine: its programs,
// network namespaces, mounts, control groups and long-running processes.
package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// searchPath finds the system's programs even for a user whose own PATH leaves
// out the administrator's folders.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Run runs a program to its end. An error carries what the program complained of.
func Run(ctx context.Context, name string, args ...string) error {
	_, err := Output(ctx, nil, name, args...)
	return err
}

// Output runs a program to its end with the given input and returns what it
// printed. An error carries what the program complained of.
func Output(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, Find(name), args...) //nolint:gosec // the callers name the programs
	cmd.Env = environment()
	cmd.Stdin = stdin
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(complaints.String()))
	}
	return string(out), nil
}

// environment is all that the cluster's processes see of the caller's: no proxy
// settings above all, since none of their traffic leaves the machine.
func environment() []string {
	return []string{"PATH=" + searchPath, "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
}

// Find returns the full name of a program, or the bare name if it is not installed.
func Find(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for dir := range strings.SplitSeq(searchPath, ":") {
		if full := dir + "/" + name; executable(full) {
			return full
		}
	}
	return name
}
