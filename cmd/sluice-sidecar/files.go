package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/internal/compile"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	minHashKey = 16
	// settle is how long a change may take: editors empty a file and then write it.
	settle = 50 * time.Millisecond
)

// loadFiles puts the files' rules in force and watches them: a bad edit keeps the last good rules and says so.
func (p *process) loadFiles(ctx context.Context, group *errgroup.Group) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	// Folders are watched, not files, since editors and mounted ConfigMaps replace files.
	for _, file := range p.o.policies {
		if err := watcher.Add(filepath.Dir(file)); err != nil {
			return fmt.Errorf("watch %s: %w", filepath.Dir(file), err)
		}
	}
	files, sum, err := p.readFiles()
	if err != nil {
		return err
	}
	update, ignored, err := p.compileFiles(files)
	if err != nil {
		return err
	}
	for _, what := range ignored {
		p.log.Info("ignored outside a cluster", "what", what)
	}
	if err := p.load(update); err != nil {
		return err
	}
	group.Go(func() error {
		defer func() {
			if err := watcher.Close(); err != nil {
				p.log.Debug("close watcher", "error", err)
			}
		}()
		p.watch(ctx, watcher, sum)
		return nil
	})
	return nil
}

func (p *process) watch(ctx context.Context, watcher *fsnotify.Watcher, last []byte) {
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-watcher.Errors:
			p.log.Warn("watching the policy files", "error", err)
		case <-watcher.Events:
			if settled == nil {
				settled = p.clock.NewTimer(settle).C()
			}
		case <-settled:
			settled = nil
			last = p.reload(last)
		}
	}
}

// reload returns the digest of what it read, so that an event without a change does nothing.
func (p *process) reload(last []byte) []byte {
	files, sum, err := p.readFiles()
	if err == nil && bytes.Equal(sum, last) {
		return last
	}
	var update *pushv1.Update
	if err == nil {
		update, _, err = p.compileFiles(files)
	}
	if err == nil {
		err = p.load(update)
	}
	if err != nil {
		p.log.Error("the policy files can't be taken, the last good rules stay", "error", err)
		return sum
	}
	p.log.Info("rules in force", "version", update.GetContentVersion())
	return sum
}

func (p *process) load(u *pushv1.Update) error {
	results, err := p.loader.Load(u)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.GetError() != "" {
			return fmt.Errorf("policy %s: %s", r.GetPolicy(), r.GetError()) //nolint:err113 // the text is all there is
		}
	}
	return nil
}

func (p *process) readFiles() ([]compile.File, []byte, error) {
	digest := sha256.New()
	files := make([]compile.File, 0, len(p.o.policies))
	for _, name := range p.o.policies {
		data, err := os.ReadFile(name) //nolint:gosec // the user names the file
		if err != nil {
			return nil, nil, fmt.Errorf("policy file: %w", err)
		}
		fmt.Fprintf(digest, "%d\n", len(data))
		digest.Write(data)
		files = append(files, compile.File{Name: name, Data: data})
	}
	return files, digest.Sum(nil), nil
}

func (p *process) compileFiles(files []compile.File) (*pushv1.Update, []string, error) {
	read, err := compile.ReadFiles(files)
	if err != nil {
		return nil, nil, err
	}
	in, err := read.Inputs(p.o.storeDescription.GetName())
	if err != nil {
		return nil, nil, err
	}
	in.Stores = []*pushv1.Store{p.o.storeDescription}
	if in.HashKey, err = p.hashKey(); err != nil {
		return nil, nil, err
	}
	for _, policy := range in.Policies {
		in.Shares = append(in.Shares, &pushv1.Share{Policy: compile.PolicyName(policy), Of: uint32(p.o.replicas)}) //nolint:gosec // bounded
	}
	update, err := compile.Assemble(in)
	return update, read.Ignored, err
}

func (p *process) hashKey() ([]byte, error) {
	if p.o.hashKeyFile == "" {
		return nil, nil
	}
	key, err := os.ReadFile(p.o.hashKeyFile)
	if err != nil {
		return nil, fmt.Errorf("hash key: %w", err)
	}
	if key = bytes.TrimSpace(key); len(key) < minHashKey {
		return nil, fmt.Errorf("hash key: %s holds fewer than %d bytes", p.o.hashKeyFile, minHashKey) //nolint:err113 // start-up
	}
	return key, nil
}
