package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/hybrid"
	"github.com/sluice-dev/sluice/limiter/redis"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Stores keeps one connection pool for each store, over changes of rules: a pool is made anew only where what
// describes the store has changed. It is used by one goroutine at a time, but for Leased.
type Stores struct {
	local    limiter.Store
	observer limiter.Observer
	log      *slog.Logger
	open     map[string]*openStore
	known    map[string]*pushv1.Store
	replaced []*openStore // by pools that serve the next rules; those in force still use them

	mu      sync.Mutex
	holders map[*hybrid.Store]struct{}
}

type openStore struct {
	described *pushv1.Store
	backend   *limiter.Backend
	redis     *redis.Store // nil = in this process
	leases    *hybrid.Store
}

// ErrStore tells that a store can't be used as it is described.
var ErrStore = errors.New("unusable store")

// NewStores returns no stores. local is the one in this process.
func NewStores(local limiter.Store, o limiter.Observer, log *slog.Logger) *Stores {
	return &Stores{local: local, observer: o, log: log, open: map[string]*openStore{}, holders: map[*hybrid.Store]struct{}{}}
}

// Describe tells which stores there are from now on.
func (s *Stores) Describe(list []*pushv1.Store) {
	s.known = make(map[string]*pushv1.Store, len(list))
	for _, store := range list {
		s.known[store.GetName()] = store
	}
}

// Backend returns the store of a name.
func (s *Stores) Backend(name string) (*limiter.Backend, error) {
	described, found := s.known[name]
	if !found {
		return nil, fmt.Errorf("%w: it is not described", ErrStore)
	}
	if o := s.open[name]; o != nil && proto.Equal(o.described, described) {
		return o.backend, nil
	}
	o, err := s.openOne(described)
	if err != nil {
		return nil, err
	}
	s.retire(name)
	s.open[name] = o
	return o.backend, nil
}

// Prune closes the pools that the rules in force do not use: of stores that changed, or are no longer described.
// Calls under way come to their end, and what is leased goes back.
func (s *Stores) Prune() {
	for name := range s.open {
		if s.known[name] == nil {
			s.retire(name)
		}
	}
	for _, o := range s.replaced {
		o.leases.Close()
		s.mu.Lock()
		delete(s.holders, o.leases)
		s.mu.Unlock()
		if err := o.redis.Close(); err != nil {
			s.log.Warn("close store", "store", o.described.GetName(), "error", err)
		}
	}
	s.replaced = nil
}

// Close closes every pool.
func (s *Stores) Close() {
	s.known = nil
	s.Prune()
}

func (s *Stores) retire(name string) {
	if o := s.open[name]; o != nil && o.redis != nil {
		s.replaced = append(s.replaced, o)
		s.observer.CircuitOpen(name, false) // its own circuit goes with it
	}
	delete(s.open, name)
}

// openOne connects in the background: a store that can't be reached keeps nobody from serving.
func (s *Stores) openOne(d *pushv1.Store) (*openStore, error) {
	if d.GetTopology() == pushv1.Store_TOPOLOGY_MEMORY {
		return &openStore{described: d, backend: limiter.NewBackend(d.GetName(), s.local, s.observer, s.log)}, nil
	}
	secure, err := tlsConfig(d.GetTls())
	if err != nil {
		return nil, err
	}
	store := redis.Open(redis.Options{
		Topology: topologies[d.GetTopology()], Addresses: d.GetAddresses(), MasterName: d.GetMasterName(),
		Username: d.GetUsername(), Password: d.GetPassword(), TLS: secure, Timeout: d.GetTimeout().AsDuration(),
		RoundTrip: func() { s.observer.RoundTrip(d.GetName()) },
	})
	backend := limiter.NewBackend(d.GetName(), store, s.observer, s.log)
	o := &openStore{described: d, backend: backend, redis: store}
	backend.Lease(func(l limiter.Lessor) limiter.Store {
		o.leases = hybrid.New(l, clock.Real())
		return o.leases
	})
	s.mu.Lock()
	s.holders[o.leases] = struct{}{}
	s.mu.Unlock()
	go backend.Probe(context.Background(), store.Ping)
	return o, nil
}

// Leased is how many units are leased from all stores and not used.
func (s *Stores) Leased() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for h := range s.holders {
		n += h.Held()
	}
	return n
}

var topologies = map[pushv1.Store_Topology]redis.Topology{
	pushv1.Store_TOPOLOGY_STANDALONE: redis.Standalone,
	pushv1.Store_TOPOLOGY_SENTINEL:   redis.Sentinel,
	pushv1.Store_TOPOLOGY_CLUSTER:    redis.Cluster,
}

func tlsConfig(t *pushv1.Store_TLS) (*tls.Config, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // no TLS
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.GetInsecureSkipVerify()} //nolint:gosec // only where the user asks for it
	if len(t.GetCa()) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(t.GetCa()) {
			return nil, fmt.Errorf("%w: its CA holds no certificate", ErrStore)
		}
	}
	if len(t.GetCertificate()) > 0 {
		pair, err := tls.X509KeyPair(t.GetCertificate(), t.GetKey())
		if err != nil {
			return nil, fmt.Errorf("%w: client certificate: %w", ErrStore, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
