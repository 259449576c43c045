package push

import (
	"context"
	"sync"
)

// Changes joins notices of the same namespace until somebody takes them, so that notifying never blocks and nothing is lost.
type Changes struct {
	mu      sync.Mutex
	pending map[string]struct{}
	wake    chan struct{}
}

// NewChanges returns Changes without notices.
func NewChanges() *Changes {
	return &Changes{pending: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

// Notify notes that a namespace changed.
func (c *Changes) Notify(namespace string) {
	c.mu.Lock()
	c.pending[namespace] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run hands each changed namespace to a function, until the context ends.
func (c *Changes) Run(ctx context.Context, each func(namespace string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		c.mu.Lock()
		taken := c.pending
		c.pending = map[string]struct{}{}
		c.mu.Unlock()
		for namespace := range taken {
			each(namespace)
		}
	}
}
