package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// UnfitError says which part of a cluster cannot run on this machine, and why.
type UnfitError struct{ Part, Why string }

func (e *UnfitError) Error() string {
	return fmt.Sprintf("cannot run on this machine: %s: %s", e.Part, e.Why)
}

func unfit(part, why string, args ...any) error {
	return &UnfitError{Part: part, Why: fmt.Sprintf(why, args...)}
}

// Check tries what a cluster needs of the machine, without installing or
// leaving anything. What needs a package that is not there yet is tried again
// by up, once the package is installed.
func Check(ctx context.Context) error {
	for _, try := range []func(context.Context) error{
		checkSystem, checkRoot, checkPackages, checkControlGroups, checkNamespaces, checkNetwork,
	} {
		if err := try(ctx); err != nil {
			return err
		}
	}
	return nil
}

func checkSystem(context.Context) error {
	if runtime.GOOS != "linux" {
		return unfit("the node", "it needs Linux, this is %s", runtime.GOOS)
	}
	return nil
}

func checkRoot(context.Context) error {
	if uid := os.Geteuid(); uid != 0 {
		return unfit("the node", "network namespaces and mounts need root, this is user %d", uid)
	}
	return nil
}

func checkPackages(context.Context) error {
	names := missing(NodePackages)
	if len(names) > 0 && !executable(Find("apt-get")) {
		return unfit("the node", "%s missing and there is no apt-get to install it", strings.Join(names, ", "))
	}
	return nil
}

// checkControlGroups makes and removes a group: in many containers the
// hierarchy is read-only.
func checkControlGroups(context.Context) error {
	groups, err := controlGroupRoots()
	if err != nil {
		return unfit("pods", "no control groups (%v)", err)
	}
	for _, root := range groups {
		trial := filepath.Join(root, fmt.Sprintf("sluice-check-%d", os.Getpid()))
		if err := os.Mkdir(trial, 0o750); err != nil {
			return unfit("pods", "control groups cannot be made (%v)", err)
		}
		if err := os.Remove(trial); err != nil {
			return unfit("pods", "control groups cannot be removed (%v)", err)
		}
	}
	return nil
}

func checkNamespaces(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, Find("true")) //nolint:gosec // a program that does nothing
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Run(); err != nil {
		return unfit("the node", "namespaces cannot be made (%v)", err)
	}
	return nil
}

// checkNetwork builds a small node network in a namespace of its own, which
// takes everything with it when it goes.
func checkNetwork(ctx context.Context) error {
	if !executable(Find("ip")) || !executable(Find("nft")) {
		return nil
	}
	name := fmt.Sprintf("sluice-check-%d", os.Getpid())
	if err := Run(ctx, "ip", "netns", "add", name); err != nil {
		return unfit("the node", "network namespaces cannot be made (%v)", err)
	}
	defer Run(context.WithoutCancel(ctx), "ip", "netns", "delete", name) //nolint:errcheck // nothing more to be done
	for _, trial := range networkTrials() {
		if err := InNamespace(ctx, name, trial.program, trial.args...); err != nil {
			return unfit(trial.part, "the kernel refuses: %v", err)
		}
	}
	return nil
}

// networkTrial is a command that works where that part of a cluster can.
type networkTrial struct {
	part, program string
	args          []string
}

func networkTrials() []networkTrial {
	const redirect = "add table ip sluice; " +
		"add chain ip sluice nat { type nat hook prerouting priority 0; }; " +
		"add rule ip sluice nat tcp dport 80 ct state new counter redirect to :8080"
	return []networkTrial{
		{"the node's link", "ip", strings.Fields("link add name uplink type veth peer name other")},
		{"the pods' bridge", "ip", strings.Fields("link add name pods type bridge")},
		{"Services", "nft", []string{redirect}},
		{"Services", "test", []string{"-e", "/proc/sys/net/bridge/bridge-nf-call-iptables"}},
	}
}
