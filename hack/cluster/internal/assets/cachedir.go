package assets

import (
	"errors"
	"path/filepath"
)

// CacheDir is where everything built is kept: $SLUICE_CACHE, else
// $XDG_CACHE_HOME/sluice, else ~/.cache/sluice.
func CacheDir(getenv func(string) string) (string, error) {
	if dir := getenv("SLUICE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sluice"), nil
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".cache", "sluice"), nil
	}
	return "", errors.New("nowhere to keep what is built: set SLUICE_CACHE to a folder, or HOME")
}
