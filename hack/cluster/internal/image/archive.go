// Package image makes container images without a registry: from local files,
// with one layer on nothing, or from a Dockerfile through buildah. Its result is
// always an archive that a container runtime can import.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// File is a file of the machine and its place in an image.
type File struct{ Source, Path string }

// Spec describes an image of local files on an empty base.
type Spec struct {
	// Reference is the image's full name.
	Reference  string
	Files      []File
	Entrypoint []string
	// User is who the process is, as "uid:gid".
	User string
	// Writable are folders that the process may write to, whoever it is.
	Writable []string
	WorkDir  string
}

// NonRoot is the user of images that do not say otherwise.
const NonRoot = "65532:65532"

// epoch dates everything in an image, so that equal files give equal images.
var epoch = time.Unix(0, 0).UTC()

const (
	modeProgram = 0o755
	modeFolder  = 0o755
	modeShared  = 0o1777
	modeData    = 0o644
)

// Reference completes an image's name to one that no runtime takes for a
// registry's: "shop" becomes "localhost/shop:dev".
func Reference(name string) string {
	if !strings.Contains(name, "/") {
		name = "localhost/" + name
	}
	if !strings.Contains(path.Base(name), ":") {
		name += ":dev"
	}
	return name
}

// Write writes the image as an archive of the form "docker save" gives.
func Write(out io.Writer, s Spec) error {
	var layer bytes.Buffer
	if err := writeLayer(&layer, s); err != nil {
		return err
	}
	digest := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(s.config("sha256:" + hex.EncodeToString(digest[:])))
	if err != nil {
		return fmt.Errorf("writing the image's configuration: %w", err)
	}
	configName, layerName := name(config)+".json", hex.EncodeToString(digest[:])+".tar"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{s.Reference}, "Layers": []string{layerName},
	}})
	if err != nil {
		return fmt.Errorf("writing the image's manifest: %w", err)
	}
	archive := tar.NewWriter(out)
	for _, part := range []struct {
		name    string
		content []byte
	}{{layerName, layer.Bytes()}, {configName, config}, {"manifest.json", manifest}} {
		if err := add(archive, part.name, modeData, bytes.NewReader(part.content), int64(len(part.content))); err != nil {
			return err
		}
	}
	return archive.Close()
}

// sorted puts the files in a fixed order, so that equal files give equal images.
func (s Spec) sorted() Spec {
	slices.SortFunc(s.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return s
}

func name(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// config is the image's configuration in the form that runtimes read.
func (s Spec) config(layer string) map[string]any {
	return map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      epoch.Format(time.RFC3339),
		"config": map[string]any{
			"Entrypoint": s.Entrypoint,
			"User":       s.User,
			"WorkingDir": s.WorkDir,
			"Env":        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer}},
	}
}

func writeLayer(out io.Writer, s Spec) error {
	layer := tar.NewWriter(out)
	for _, dir := range s.folders() {
		mode := int64(modeFolder)
		if slices.Contains(s.Writable, "/"+dir) {
			mode = modeShared
		}
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode, ModTime: epoch}
		if err := layer.WriteHeader(header); err != nil {
			return fmt.Errorf("writing folder %s: %w", dir, err)
		}
	}
	for _, f := range s.Files {
		if err := addFile(layer, f); err != nil {
			return err
		}
	}
	return layer.Close()
}

// folders lists every folder of the image, outer ones first.
func (s Spec) folders() []string {
	dirs := make([]string, 0, len(s.Writable)+len(s.Files))
	for _, place := range s.Writable {
		dirs = append(dirs, ancestors(place)...)
	}
	for _, f := range s.Files {
		dirs = append(dirs, ancestors(path.Dir(f.Path))...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// ancestors lists a folder and those above it but the root, without leading slashes.
func ancestors(dir string) []string {
	var all []string
	for at := path.Clean("/" + dir); at != "/"; at = path.Dir(at) {
		all = append(all, strings.TrimPrefix(at, "/"))
	}
	return all
}

func addFile(archive *tar.Writer, f File) error {
	file, err := os.Open(f.Source) // follows links, so that an image holds the files themselves
	if err != nil {
		return fmt.Errorf("reading a file for the image: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("reading a file for the image: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Source)
	}
	mode := int64(modeData)
	if info.Mode().Perm()&0o100 != 0 {
		mode = modeProgram
	}
	return add(archive, strings.TrimPrefix(path.Clean(f.Path), "/"), mode, file, info.Size())
}

func add(archive *tar.Writer, place string, mode int64, content io.Reader, size int64) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: place, Mode: mode, Size: size, ModTime: epoch}
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("writing %s: %w", place, err)
	}
	if _, err := io.CopyN(archive, content, size); err != nil {
		return fmt.Errorf("writing %s: %w", place, err)
	}
	return nil
}
