// Package testredis starts private redis-server processes for tests.
package testredis

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process that belongs to one test.
type Server struct {
	// Addr is host:port on loopback; it stays the same over Stop and Start.
	Addr string

	tb   testing.TB
	args []string
	cmd  *exec.Cmd
}

// Start runs a redis-server that keeps nothing on disk, waits until it answers, and ends it with the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{Addr: freeAddr(tb), tb: tb}
	s.args = append([]string{
		"--port", strconv.Itoa(portOf(tb, s.Addr)), "--bind", "127.0.0.1", "--dir", tb.TempDir(),
		"--save", "", "--appendonly", "no",
	}, args...)
	tb.Cleanup(s.Stop)
	s.Start()
	return s
}

// Start runs the process again after Stop, with no data.
func (s *Server) Start() {
	s.tb.Helper()
	s.cmd = exec.CommandContext(context.Background(), "redis-server", s.args...) //nolint:gosec // a test's own arguments
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("start redis-server: %v (apt-get install redis-server)", err)
	}
	s.awaitReady()
}

// Stop kills the process.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil {
		s.tb.Logf("kill redis-server: %v", err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.tb.Logf("redis-server ended: %v", err)
	}
	s.cmd = nil
}

// Freeze stops the process from running while its sockets stay open.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

// Admin is a client for which the server may be started with --requirepass and a user admin without one.
func (s *Server) Admin() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "admin", Password: "any"})
	s.tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.tb.Logf("close client: %v", err)
		}
	})
	return c
}

// Client returns a client that is closed with the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.tb.Logf("close client: %v", err)
		}
	})
	return c
}

func (s *Server) signal(sig os.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("signal redis-server: %v", err)
	}
}

func (s *Server) awaitReady() {
	s.tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DisableIdentity: true})
	defer func() {
		if err := c.Close(); err != nil {
			s.tb.Logf("close client: %v", err)
		}
	}()
	awaitThat(s.tb, "redis-server at "+s.Addr+" answers", func(ctx context.Context) bool {
		err := c.Ping(ctx).Err()
		return err == nil || redis.HasErrorPrefix(err, "NOAUTH")
	})
}

// Ports below those that the kernel gives to outgoing connections, so that none takes a port before its server does.
const (
	firstPort = 20_000
	ports     = 12_000
)

// nextPort begins elsewhere in each process.
var nextPort atomic.Int64

func freeAddr(tb testing.TB) string {
	tb.Helper()
	nextPort.CompareAndSwap(0, int64(os.Getpid())*101)
	for range ports {
		port := firstPort + nextPort.Add(1)%ports
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		var lc net.ListenConfig
		l, err := lc.Listen(context.Background(), "tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			tb.Logf("close: %v", err)
		}
		return addr
	}
	tb.Fatal("no port is free")
	return ""
}
