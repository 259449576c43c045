package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/hack/cluster/internal/image"
)

// The images that every cluster needs.
const (
	pauseReference = "localhost/sluice-pause:dev"
	dnsReference   = "localhost/sluice-coredns:dev"
)

// baseImages makes archives of the images that every node needs.
func (c *Cluster) baseImages() ([]string, error) {
	var archives []string
	for reference, program := range map[string]string{pauseReference: "pause", dnsReference: "coredns"} {
		archive := c.state.Plan.file("images", program+".tar")
		err := writeArchive(archive, image.Spec{
			Reference:  reference,
			Files:      []image.File{{Source: c.Catalog.Path(program), Path: "/" + program}},
			Entrypoint: []string{"/" + program},
			User:       image.NonRoot,
		})
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// Load makes an image and puts it on every node.
func (c *Cluster) Load(ctx context.Context, s image.Spec) error {
	return c.loadFrom(ctx, s.Reference, func(archive string) error { return writeArchive(archive, s) })
}

// LoadBuild builds an image from a Dockerfile and puts it on every node.
func (c *Cluster) LoadBuild(ctx context.Context, b image.Build) error {
	return c.loadFrom(ctx, b.Reference, func(archive string) error {
		return b.Write(ctx, archive, filepath.Dir(archive))
	})
}

// loadFrom lets an image be made in a folder of its own and puts it on every node.
func (c *Cluster) loadFrom(ctx context.Context, reference string, build func(archive string) error) error {
	scratch, err := os.MkdirTemp(c.state.Plan.file("images"), "load-")
	if err != nil {
		return fmt.Errorf("making room for an image: %w", err)
	}
	archive := filepath.Join(scratch, "image.tar")
	err = build(archive)
	if err == nil {
		err = c.importImages(ctx, []string{archive})
	}
	if err := errors.Join(err, os.RemoveAll(scratch)); err != nil {
		return err
	}
	c.Log.Printf("loaded %s", reference)
	return nil
}

func writeArchive(name string, s image.Spec) error {
	file, err := os.Create(name) //nolint:gosec // a name of our own
	if err != nil {
		return fmt.Errorf("making an image: %w", err)
	}
	if err := errors.Join(image.Write(file, s), file.Close()); err != nil {
		return fmt.Errorf("making %s: %w", s.Reference, err)
	}
	return nil
}

// importImages gives archives to every node's container runtime.
func (c *Cluster) importImages(ctx context.Context, archives []string) error {
	return c.state.Plan.eachNode(func(node int) error {
		for _, archive := range archives {
			if _, err := c.ctr(ctx, node, "images", "import", archive); err != nil {
				return fmt.Errorf("importing an image: %w", err)
			}
		}
		return nil
	})
}
