package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// controlGroupDir is where the hierarchies of control groups are mounted: one
// under this name itself (version 2), or one a controller in folders (version 1).
const controlGroupDir = "/sys/fs/cgroup"

// controlGroupRoots lists the roots of all hierarchies.
func controlGroupRoots() ([]string, error) {
	if _, err := os.Stat(filepath.Join(controlGroupDir, "cgroup.controllers")); err == nil {
		return []string{controlGroupDir}, nil
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	roots := slices.DeleteFunc(mountPoints(string(table), controlGroupDir), func(p string) bool { return p == controlGroupDir })
	if len(roots) == 0 {
		return nil, errors.New("none is mounted under " + controlGroupDir)
	}
	return roots, nil
}

// MakeControlGroup makes a group of the given name in every hierarchy.
func MakeControlGroup(name string) error {
	roots, err := controlGroupRoots()
	if err != nil {
		return fmt.Errorf("finding control groups: %w", err)
	}
	for _, root := range roots {
		if err := os.Mkdir(filepath.Join(root, name), 0o750); err != nil && !os.IsExist(err) {
			return fmt.Errorf("making a control group: %w", err)
		}
	}
	return nil
}

// RemoveControlGroup removes the group of the given name and those below it
// from every hierarchy.
func RemoveControlGroup(name string) error {
	roots, err := controlGroupRoots()
	if err != nil {
		return nil //nolint:nilerr // no hierarchy, nothing to remove
	}
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeGroups(filepath.Join(root, name)))
	}
	return errors.Join(errs...)
}

// removeGroups removes a group's folders from the innermost outwards; the files
// in them are the kernel's and go with them.
func removeGroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing control groups: %w", err)
	}
	for _, name := range slices.Backward(dirs) {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("removing control group %s: %w", strings.TrimPrefix(name, controlGroupDir), err)
		}
	}
	return nil
}
