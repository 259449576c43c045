package limiter_test

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
	"github.com/sluice-dev/sluice/limiter/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is something that befalls a server.
type fault struct {
	begin, end func(t *testing.T, s *testredis.Server, p *testredis.Proxy)
	reason     string
}

func config(name, value string) func(*testing.T, *testredis.Server, *testredis.Proxy) {
	return func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) {
		t.Helper()
		if err := s.Admin().ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func follow(host, port string) func(*testing.T, *testredis.Server, *testredis.Proxy) {
	return func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) {
		t.Helper()
		if err := s.Admin().ReplicaOf(t.Context(), host, port).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	password = "right"
	timeout  = 250 * time.Millisecond
	slack    = 2 * time.Second // of a machine that is busy with other tests
)

var faults = map[string]fault{
	"it is killed": {
		func(_ *testing.T, s *testredis.Server, _ *testredis.Proxy) { s.Stop() },
		func(_ *testing.T, s *testredis.Server, _ *testredis.Proxy) { s.Start() }, "unreachable",
	},
	"it is frozen": {
		func(_ *testing.T, s *testredis.Server, _ *testredis.Proxy) { s.Freeze() },
		func(_ *testing.T, s *testredis.Server, _ *testredis.Proxy) { s.Thaw() }, "timeout",
	},
	"it is slow": {
		func(_ *testing.T, _ *testredis.Server, p *testredis.Proxy) { p.Delay(2 * timeout) },
		func(_ *testing.T, _ *testredis.Server, p *testredis.Proxy) { p.Delay(0) }, "timeout",
	},
	"it has no memory left":    {config("maxmemory", "1"), config("maxmemory", "0"), "refused"},
	"it is a read-only copy":   {follow("127.0.0.1", "1"), follow("NO", "ONE"), "refused"},
	"the password was changed": {changePassword("wrong"), changePassword(password), "refused"},
}

func changePassword(to string) func(*testing.T, *testredis.Server, *testredis.Proxy) {
	return func(t *testing.T, s *testredis.Server, _ *testredis.Proxy) {
		t.Helper()
		admin := s.Admin()
		if err := admin.ConfigSet(t.Context(), "requirepass", to).Err(); err != nil {
			t.Fatal(err)
		}
		// Connections stay as they are after a change: end them all but the administrator's.
		if err := admin.Do(t.Context(), "client", "kill", "user", "default", "skipme", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhateverBefallsTheStoreItsPolicyDecidesInTime(t *testing.T) {
	t.Parallel()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t, "--requirepass", password,
				"--user", "admin", "on", "nopass", "~*", "&*", "+@all")
			proxy := testredis.Slow(t, server.Addr)
			store := redis.Open(redis.Options{
				Topology: redis.Standalone, Addresses: []string{proxy.Addr}, Password: password, Timeout: timeout,
			})
			t.Cleanup(func() {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
			h := &heard{}
			b := limiter.NewBackend("ns/redis", store, h, slog.New(slog.NewTextHandler(io.Discard, nil)))
			e := limiter.NewEngine(memory.New(memory.Options{}))
			allow, deny, share := rule(b, limiter.FailAllow, 1e6), rule(b, limiter.FailDeny, 1e6), rule(b, limiter.FailLocal, 1e6)
			untilFrom(t, e, deny, limiter.FromStore)
			f.begin(t, server, proxy)
			untilFrom(t, e, deny, limiter.FailedDeny)
			for range 5 {
				for r, want := range map[*limiter.Rule]limiter.Source{
					allow: limiter.FailedAllow, deny: limiter.FailedDeny, share: limiter.FromShare,
				} {
					started := time.Now()
					if got := ask(t, e, r); got.Source != want || got.Allowed != (want != limiter.FailedDeny) {
						t.Errorf("%+v, want source %d", got, want)
					}
					if took := time.Since(started); took > timeout+slack {
						t.Errorf("held a request for %s, with a time-out of %s", took, timeout)
					}
				}
			}
			if !h.isOpen() || !h.was(f.reason) {
				t.Errorf("circuit open: %t, reasons %v; want %s", h.isOpen(), h.reasons, f.reason)
			}
			f.end(t, server, proxy)
			mended := time.Now()
			untilFrom(t, e, deny, limiter.FromStore)
			if took := time.Since(mended); took > 3*time.Second+slack {
				t.Errorf("the store decides again only after %s", took)
			}
		})
	}
}

func untilFrom(t *testing.T, e *limiter.Engine, r *limiter.Rule, want limiter.Source) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ask(t, e, r).Source != want {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain for a decision of source %d", want)
		}
	}
}
