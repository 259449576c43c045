package sidecar

import (
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/expression"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

// Loader compiles Updates and puts them in force.
type Loader struct {
	mu      sync.Mutex
	guard   *Guard
	stores  *Stores
	builder *rules.Builder
	log     *slog.Logger
}

// NewLoader returns a Loader for a guard. refresh asks for an issuer's keys and may be nil.
func NewLoader(g *Guard, s *Stores, c clock.Clock, refresh func(policy, issuer, keyID string), log *slog.Logger) (*Loader, error) {
	env, err := expression.New()
	if err != nil {
		return nil, err
	}
	return &Loader{
		guard: g, stores: s, log: log,
		builder: &rules.Builder{Env: env, Clock: c, Backend: s.Backend, Refresh: refresh},
	}, nil
}

// Load puts an Update in force and returns one result a policy: those that can't be compiled keep their former content.
func (l *Loader) Load(u *pushv1.Update) ([]*pushv1.PolicyResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var secrets pushv1.Secrets
	if err := proto.Unmarshal(u.GetSecrets(), &secrets); err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	l.stores.Describe(secrets.GetStores())
	set, results, err := l.builder.Build(u, l.guard.Rules())
	if err != nil {
		return nil, err
	}
	l.guard.Enforce(set)
	l.stores.Prune()
	for _, r := range results {
		if r.GetError() != "" {
			l.log.Error("policy can't be enforced as pushed, its former content stays", "policy", r.GetPolicy(), "error", r.GetError())
		}
	}
	return results, nil
}
