package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// RedisProber probes stores over the network, as the sidecars reach them.
type RedisProber struct{}

var errCertificate = errors.New("the CA holds no certificate")

// Probe asks the server for its version and memory, and runs a script, which is what deciding takes.
func (RedisProber) Probe(ctx context.Context, s *pushv1.Store) (found Found, err error) {
	options := &redis.UniversalOptions{
		Addrs: s.GetAddresses(), MasterName: s.GetMasterName(), IsClusterMode: s.GetTopology() == pushv1.Store_TOPOLOGY_CLUSTER,
		Username: s.GetUsername(), Password: s.GetPassword(), MaxRetries: -1, ContextTimeoutEnabled: true,
		PoolSize: 1, DisableIdentity: true,
	}
	if t := s.GetTls(); t != nil {
		if options.TLSConfig, err = tlsOf(t); err != nil {
			return Found{}, err
		}
	}
	c := redis.NewUniversalClient(options)
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Eval(ctx, "return redis.call('TIME')", nil).Err(); err != nil {
		return Found{}, fmt.Errorf("run a script in the store: %w", err)
	}
	info, err := c.Info(ctx, "server", "memory").Result()
	if err != nil {
		return Found{}, fmt.Errorf("ask the store for its memory: %w", err)
	}
	return parseInfo(info), nil
}

// parseInfo reads the lines "name:value" of INFO.
func parseInfo(info string) Found {
	var f Found
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseInt(value, 10, 64) // 0 where it is no number
		switch name {
		case "redis_version":
			f.Version = value
		case "used_memory":
			f.UsedMemory = n
		case "maxmemory":
			f.MaxMemory = n
		}
	}
	return f
}

func tlsOf(t *pushv1.Store_TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.GetInsecureSkipVerify()} //nolint:gosec // only where the user asks for it
	if len(t.GetCa()) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(t.GetCa()) {
			return nil, errCertificate
		}
	}
	if len(t.GetCertificate()) > 0 {
		pair, err := tls.X509KeyPair(t.GetCertificate(), t.GetKey())
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
