package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-dev/sluice/limiter"
)

// Topology is how the servers hang together.
type Topology uint8

// The topologies.
const (
	Standalone Topology = iota + 1
	Sentinel
	Cluster
)

// Options say how to reach the servers.
type Options struct {
	Topology   Topology
	Addresses  []string // host:port of the server, the sentinels, or some servers of the cluster
	MasterName string   // Sentinel only
	Username   string
	Password   string
	TLS        *tls.Config   // nil = plain
	Timeout    time.Duration // of each call; 0 = 50ms
	PoolSize   int           // connections a server; 0 = 8
}

const (
	defaultTimeout  = 50 * time.Millisecond
	defaultPoolSize = 8
	bufferSize      = 8 << 10
)

// Store is a limiter.Store in Redis.
type Store struct {
	client  redis.UniversalClient
	script  *redis.Script
	timeout time.Duration
}

// Open returns a Store. It does not connect yet: a server that can't be reached is an error of Decide.
func Open(o Options) *Store {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.PoolSize <= 0 {
		o.PoolSize = defaultPoolSize
	}
	// A call that is sent again would count twice, so nothing is retried.
	return &Store{
		client: redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs: o.Addresses, MasterName: o.MasterName, IsClusterMode: o.Topology == Cluster,
			Username: o.Username, Password: o.Password, TLSConfig: o.TLS,
			DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
			ContextTimeoutEnabled: true, MaxRetries: -1, MaxRedirects: 3,
			PoolSize: o.PoolSize, ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
			DisableIdentity: true,
		}),
		script:  redis.NewScript(decideSource),
		timeout: o.Timeout,
	}
}

// Decide implements limiter.Store in one round trip.
func (s *Store) Decide(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	keys, args := encode(checks)
	reply, err := s.script.Run(ctx, s.client, keys, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("ask the store: %w", err)
	}
	return decode(checks, reply)
}

// Ping tells whether the server answers and accepts the credentials.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping the store: %w", err)
	}
	return nil
}

// Close ends the connections.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}
