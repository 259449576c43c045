package testredis

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-dev/sluice/internal/clock"
)

const slots = 16384

// Nodes is a Redis Cluster of masters without replicas.
type Nodes struct {
	Servers []*Server
	owner   [slots]int
	ids     []string
	buses   []int
	clients []*redis.Client
}

// Cluster runs n masters that share the slots evenly, and waits until they agree.
func Cluster(tb testing.TB, n int) *Nodes {
	tb.Helper()
	c := &Nodes{}
	for range n {
		bus := portOf(tb, freeAddr(tb))
		s := Start(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no")
		c.Servers, c.clients, c.buses = append(c.Servers, s), append(c.clients, s.Client()), append(c.buses, bus)
	}
	for i := range n {
		c.join(tb, i)
	}
	awaitThat(tb, "the cluster agrees", func(ctx context.Context) bool {
		for _, client := range c.clients {
			info := client.ClusterInfo(ctx).Val()
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") ||
				!strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", n)) {
				return false
			}
		}
		return true
	})
	return c
}

// Addrs lists the nodes.
func (c *Nodes) Addrs() []string {
	addrs := make([]string, 0, len(c.Servers))
	for _, s := range c.Servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// join gives a node its slots and makes it known to those before it.
func (c *Nodes) join(tb testing.TB, i int) {
	tb.Helper()
	ctx, n := context.Background(), len(c.Servers)
	if err := c.clients[i].ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
		tb.Fatalf("give slots to node %d: %v", i, err)
	}
	for slot := i * slots / n; slot < (i+1)*slots/n; slot++ {
		c.owner[slot] = i
	}
	id, err := c.clients[i].ClusterMyID(ctx).Result()
	if err != nil {
		tb.Fatalf("name of node %d: %v", i, err)
	}
	c.ids = append(c.ids, id)
	for j := range i {
		if err := c.clients[i].Do(ctx, "cluster", "meet", "127.0.0.1", portOf(tb, c.Servers[j].Addr), c.buses[j]).Err(); err != nil {
			tb.Fatalf("meet node %d: %v", j, err)
		}
	}
}

// Move moves the slot of a key to another node, as a resharding does: calls meet ASK on the way, and MOVED after it.
// Meanwhile is called half-way.
func (c *Nodes) Move(tb testing.TB, key string, meanwhile func()) {
	tb.Helper()
	ctx := context.Background()
	slot, err := c.clients[0].ClusterKeySlot(ctx, key).Result()
	if err != nil {
		tb.Fatalf("slot of %s: %v", key, err)
	}
	from := c.owner[slot]
	to := (from + 1) % len(c.Servers)
	c.owner[slot] = to
	run := func(node int, args ...any) {
		if err := c.clients[node].Do(ctx, args...).Err(); err != nil {
			tb.Fatalf("%v: %v", args, err)
		}
	}
	run(to, "cluster", "setslot", slot, "importing", c.ids[from])
	run(from, "cluster", "setslot", slot, "migrating", c.ids[to])
	move := func() {
		for _, k := range c.clients[from].ClusterGetKeysInSlot(ctx, int(slot), 1000).Val() {
			run(from, "migrate", "127.0.0.1", portOf(tb, c.Servers[to].Addr), k, 0, 5000)
		}
	}
	move()
	meanwhile()
	move()
	run(to, "cluster", "setslot", slot, "node", c.ids[to])
	run(from, "cluster", "setslot", slot, "node", c.ids[to])
}

// awaitThat polls, since other processes offer nothing to wait on.
func awaitThat(tb testing.TB, what string, holds func(context.Context) bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for !holds(ctx) {
		timer := clock.Real().NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C():
		case <-ctx.Done():
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// portOf is the port of an address.
func portOf(tb testing.TB, addr string) int {
	tb.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("address %s: %v", addr, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatalf("port %s: %v", text, err)
	}
	return port
}
