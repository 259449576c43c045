package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/internal/clock"
)

var errNoCertificate = errors.New("the certificate is not there yet")

const (
	lookForCertificate  = 500 * time.Millisecond
	lookAtCertificate   = 20 * time.Second
	certificateFileMode = 0o600
)

// certificateFiles copies the certificate's Secret into files. The kubelet would do so, too, but a minute later.
type certificateFiles struct {
	reader client.Reader
	key    types.NamespacedName
	dir    string
	clock  clock.Clock
}

// Start copies until the context ends.
func (c *certificateFiles) Start(ctx context.Context) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("certificate folder: %w", err)
	}
	for {
		wait := lookAtCertificate
		if err := c.copy(ctx); err != nil {
			wait = lookForCertificate
			if !errors.Is(err, errNoCertificate) {
				ctrl.Log.Error(err, "the certificate can't be copied")
			}
		}
		timer := c.clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

func (c *certificateFiles) copy(ctx context.Context) error {
	var secret corev1.Secret
	if err := c.reader.Get(ctx, c.key, &secret); err != nil {
		return fmt.Errorf("get Secret %s: %w", c.key, err)
	}
	for _, name := range []string{"ca.crt", "tls.key", "tls.crt"} {
		data := secret.Data[name]
		if len(data) == 0 {
			return errNoCertificate
		}
		path := filepath.Join(c.dir, name)
		have, err := os.ReadFile(path) //nolint:gosec // the operator's own folder
		if err == nil && bytes.Equal(have, data) {
			continue
		}
		if err := os.WriteFile(path+".new", data, certificateFileMode); err != nil {
			return fmt.Errorf("write certificate: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("replace certificate: %w", err)
		}
	}
	return nil
}
