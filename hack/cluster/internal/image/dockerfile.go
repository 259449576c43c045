package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// Build describes an image that a stage of a Dockerfile makes.
type Build struct {
	Reference, Dockerfile, Target string
	// Context is the folder that plain COPY lines read.
	Context string
	// Args are build arguments, NAME=VALUE.
	Args []string
	// Contexts, NAME=FOLDER, each take the place of a stage of that name, which
	// is then not built: this is how binaries built on this machine get in where
	// no image with a compiler can be pulled.
	Contexts []string
}

// Write builds the image with buildah, which needs neither a daemon nor a
// registry, and leaves it in the archive. scratch is an empty folder for what
// lies about meanwhile.
func (b Build) Write(ctx context.Context, archive, scratch string) error {
	defer forgetBlobs()()
	buildah := b.storage(scratch)
	if err := host.Run(ctx, "buildah", append(buildah, b.args()...)...); err != nil {
		return fmt.Errorf("building %s from %s: %w", b.Reference, b.Dockerfile, err)
	}
	push := []string{"push", "--quiet", b.Reference, "docker-archive:" + archive + ":" + b.Reference}
	if err := host.Run(ctx, "buildah", append(buildah, push...)...); err != nil {
		return fmt.Errorf("saving %s: %w", b.Reference, err)
	}
	return nil
}

// storage keeps buildah out of the machine's own image store; its vfs driver
// needs nothing of the file system below.
func (b Build) storage(scratch string) []string {
	return []string{
		"--storage-driver", "vfs",
		"--root", filepath.Join(scratch, "images"),
		"--runroot", filepath.Join(scratch, "run"),
	}
}

// forgetBlobs removes the notes that buildah keeps outside the storage it is
// given, unless this machine had some before.
func forgetBlobs() (forget func()) {
	const notes = "/var/lib/containers/cache"
	if _, err := os.Stat(notes); err == nil {
		return func() {}
	}
	return func() {
		_ = os.RemoveAll(notes)
		_ = os.Remove(filepath.Dir(notes)) // goes only if nothing else is in it
	}
}

func (b Build) args() []string {
	args := []string{
		"build", "--isolation", "chroot", "--pull-never", "--quiet",
		"--file", b.Dockerfile, "--target", b.Target, "--tag", b.Reference,
	}
	for _, arg := range b.Args {
		args = append(args, "--build-arg", arg)
	}
	for _, replaced := range b.Contexts {
		args = append(args, "--build-context", replaced)
	}
	return append(args, b.Context)
}

// Absolute makes the folder of a NAME=FOLDER pair absolute and checks that it is there.
func Absolute(pair string) (string, error) {
	name, dir, isPair := strings.Cut(pair, "=")
	if !isPair || name == "" {
		return "", fmt.Errorf("%q is not NAME=FOLDER", pair)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s is not a folder", dir)
	}
	return name + "=" + dir, nil
}
