package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

// CNIDir is where Debian keeps the plugins that give a pod its network.
const CNIDir = "/usr/lib/cni"

// Package is a Debian package and a file by which one sees that it is installed.
type Package struct{ Name, Proof string }

// Packages that a node, image builds and the Redis image need.
var (
	NodePackages = []Package{
		{"iproute2", "ip"},
		{"nftables", "nft"},
		{"containerd", "containerd"},
		{"runc", "runc"},
		{"containernetworking-plugins", CNIDir + "/bridge"},
	}
	BuildPackages = []Package{{"buildah", "buildah"}}
	RedisPackages = []Package{{"redis-tools", "redis-check-rdb"}}
)

// aptInstall answers every question by itself and waits for another apt to finish.
var aptInstall = []string{"install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}

// noServices tells Debian's package scripts to start no service.
const noServices = "/usr/sbin/policy-rc.d"

// Install installs the packages that are missing, without starting the services
// that some of them bring, and says whether there was any.
func Install(ctx context.Context, log *progress.Log, packages []Package) (installed bool, err error) {
	names := missing(packages)
	if len(names) == 0 {
		return false, nil
	}
	if !executable(Find("apt-get")) {
		return false, unfit("installing "+strings.Join(names, ", "), "this machine has no apt-get")
	}
	log.Printf("installing %s from the distribution", strings.Join(names, ", "))
	allow, err := forbidServices()
	if err != nil {
		return false, err
	}
	defer allow()
	if err := aptGet(ctx, names); err == nil {
		return true, nil
	}
	// The package lists may be missing or too old to find the files.
	log.Printf("refreshing the distribution's package lists")
	if err := apt(ctx, "update"); err != nil {
		return false, fmt.Errorf("refreshing the package lists: %w", err)
	}
	if err := aptGet(ctx, names); err != nil {
		return false, fmt.Errorf("installing packages: %w", err)
	}
	return true, nil
}

func aptGet(ctx context.Context, names []string) error {
	return apt(ctx, slices.Concat(aptInstall, names)...)
}

// apt runs apt-get in the caller's environment, whose proxy settings it may need.
func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, Find("apt-get"), args...) //nolint:gosec // the package names are constants
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		const enough = 5
		return fmt.Errorf("apt-get: %w: %s", err, lastLines(string(out), enough))
	}
	return nil
}

func missing(packages []Package) []string {
	var names []string
	for _, p := range packages {
		if !executable(Find(p.Proof)) {
			names = append(names, p.Name)
		}
	}
	return names
}

// forbidServices keeps the package scripts from starting services until it is
// undone. A rule that the machine already has stays as it is.
func forbidServices() (undo func(), err error) {
	file, err := os.OpenFile(noServices, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // a script that others run
	if os.IsExist(err) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keeping services from starting: %w", err)
	}
	undo = func() { _ = os.Remove(noServices) }
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	if err := firstError(err, file.Close()); err != nil {
		undo()
		return nil, fmt.Errorf("keeping services from starting: %w", err)
	}
	return undo, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
