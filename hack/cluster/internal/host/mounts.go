package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Unmount unmounts everything at or below a folder, the innermost first.
func Unmount(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("listing mounts: %w", err)
	}
	var errs []error
	for _, point := range slices.Backward(mountPoints(string(table), dir)) {
		// Detached mounts go as soon as the last process that uses them does.
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

// mountPoints reads the mounts at or below a folder out of a mountinfo table, in
// the order in which they were made.
func mountPoints(table, dir string) []string {
	var points []string
	for line := range strings.Lines(table) {
		const pointField = 4
		fields := strings.Fields(line)
		if len(fields) <= pointField {
			continue
		}
		point := unescape(fields[pointField])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}

// unescape undoes the octal escapes that the kernel writes for spaces and the like.
func unescape(name string) string {
	const digits = 3
	var plain strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+digits < len(name) {
			if code, err := strconv.ParseUint(name[i+1:i+1+digits], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				i += digits
				continue
			}
		}
		plain.WriteByte(name[i])
	}
	return plain.String()
}

// OverlaysWork tries whether the kernel can lay folders over each other in a
// folder of that file system.
func OverlaysWork(dir string) bool {
	trial, err := os.MkdirTemp(dir, "overlay-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(trial)
	for _, part := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(trial+"/"+part, 0o700); err != nil {
			return false
		}
	}
	layers := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", trial)
	if err := syscall.Mount("overlay", trial+"/merged", "overlay", 0, layers); err != nil {
		return false
	}
	return syscall.Unmount(trial+"/merged", 0) == nil
}
