package host

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Tail returns the last lines of a file, or nothing if it cannot be read.
func Tail(name string, lines int) string {
	const enough = 16 << 10
	file, err := os.Open(name) //nolint:gosec // a log of our own
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > enough {
		_, _ = file.Seek(-enough, io.SeekEnd)
	}
	content, _ := io.ReadAll(file)
	return lastLines(string(content), lines)
}

func lastLines(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// CopyFiles copies the regular files below a folder to the same places below
// another, over what is there.
func CopyFiles(to, from string) error {
	return filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		place, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(name) //nolint:gosec // a log of our own
		if err != nil {
			return err
		}
		target := filepath.Join(to, place)
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o600) //nolint:gosec // where the user wants the logs
	})
}
