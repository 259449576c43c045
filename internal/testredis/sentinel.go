package testredis

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinels call the master.
const MasterName = "mymaster"

// Watched is a master and a replica that sentinels watch.
type Watched struct {
	Master, Replica *Server
	Sentinels       []*Server
}

// Sentinel runs a master, a replica and three sentinels, and waits until they know each other.
func Sentinel(tb testing.TB) *Watched {
	tb.Helper()
	w := &Watched{Master: Start(tb)}
	w.Replica = Start(tb, "--replicaof", strings.Replace(w.Master.Addr, ":", " ", 1))
	replica := w.Replica.Client()
	awaitThat(tb, "the replica follows", func(ctx context.Context) bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	for range 3 {
		w.Sentinels = append(w.Sentinels, startSentinel(tb, w.Master))
	}
	for _, s := range w.Sentinels {
		client := s.sentinel()
		awaitThat(tb, "the sentinels know each other", func(ctx context.Context) bool {
			master := client.Master(ctx, MasterName).Val()
			return master["num-slaves"] == "1" && master["num-other-sentinels"] == "2" && master["flags"] == "master"
		})
	}
	return w
}

// Addrs lists the sentinels.
func (w *Watched) Addrs() []string {
	addrs := make([]string, 0, len(w.Sentinels))
	for _, s := range w.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// AwaitPromotion waits until the replica is the master.
func (w *Watched) AwaitPromotion() {
	w.Replica.tb.Helper()
	client := w.Replica.Client()
	awaitThat(w.Replica.tb, "the replica is promoted", func(ctx context.Context) bool {
		return strings.Contains(client.Info(ctx, "replication").Val(), "role:master")
	})
}

func (s *Server) sentinel() *redis.SentinelClient {
	c := redis.NewSentinelClient(&redis.Options{Addr: s.Addr})
	s.tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.tb.Logf("close client: %v", err)
		}
	})
	return c
}

func startSentinel(tb testing.TB, master *Server) *Server {
	tb.Helper()
	s := &Server{Addr: freeAddr(tb), tb: tb}
	dir := tb.TempDir()
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %[3]s 127.0.0.1 %[4]d 2\n"+
		"sentinel down-after-milliseconds %[3]s 500\nsentinel failover-timeout %[3]s 5000\n",
		portOf(tb, s.Addr), dir, MasterName, portOf(tb, master.Addr))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatalf("write the sentinel's configuration: %v", err)
	}
	s.args = []string{file, "--sentinel"}
	tb.Cleanup(s.Stop)
	s.Start()
	return s
}
