package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// namespaceDir is where ip keeps the namespaces that have names.
const namespaceDir = "/run/netns"

// InNamespace runs a program inside a named network namespace. It enters with
// nsenter because "ip netns exec" would hide the control groups.
func InNamespace(ctx context.Context, name, program string, args ...string) error {
	return Run(ctx, "nsenter", enter(name, program, args)...)
}

func enter(name, program string, args []string) []string {
	return append([]string{"--net=" + filepath.Join(namespaceDir, name), Find(program)}, args...)
}

// IP has ip carry out lines of its batch language, in a named namespace or, with
// an empty name, in the machine's own.
func IP(ctx context.Context, namespace string, lines []string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-netns", namespace}, args...)
	}
	if _, err := Output(ctx, strings.NewReader(strings.Join(lines, "\n")+"\n"), "ip", args...); err != nil {
		return fmt.Errorf("setting up the network: %w", err)
	}
	return nil
}

// DeleteNamespace removes a named network namespace, with all links and rules in
// it. One that is not there is fine.
func DeleteNamespace(ctx context.Context, name string) error {
	if _, err := os.Stat(filepath.Join(namespaceDir, name)); os.IsNotExist(err) {
		return nil
	}
	return Run(ctx, "ip", "netns", "delete", name)
}

// DeleteLink removes a network link of the machine. One that is not there is fine.
func DeleteLink(ctx context.Context, name string) error {
	if _, err := os.Stat(filepath.Join("/sys/class/net", name)); os.IsNotExist(err) {
		return nil
	}
	return Run(ctx, "ip", "link", "delete", name)
}
