package push

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const stateFile = "update"

// writeState replaces the kept Update in one step. It holds secrets: only this user may read it.
func (c *Client) writeState(u *pushv1.Update) error {
	if c.o.StateDir == "" {
		return nil
	}
	data, err := proto.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	path := filepath.Join(c.o.StateDir, stateFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

// readState returns nil where nothing was kept.
func (c *Client) readState() (*pushv1.Update, error) {
	if c.o.StateDir == "" {
		return nil, nil //nolint:nilnil // nothing kept is no error
	}
	data, err := os.ReadFile(filepath.Join(c.o.StateDir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing kept is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	u := &pushv1.Update{}
	if err := proto.Unmarshal(data, u); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return u, nil
}
