package sidecar_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar"
	"github.com/sluice-dev/sluice/sidecar/listen"
	"github.com/sluice-dev/sluice/sidecar/proxy"
)

const patience = 20 * time.Second

// policy is ns/shop with rules that count in this process and one tier; options change it.
func policy(options ...func(*pushv1.Policy)) *pushv1.Policy {
	p := &pushv1.Policy{
		Namespace: "ns", Name: "shop", Generation: 1, Mode: pushv1.Policy_MODE_CENTRAL, Store: "memory",
		OnStoreFailure: pushv1.Policy_ON_STORE_FAILURE_LOCAL,
		Identity:       &pushv1.Identity{Ipv4PrefixLength: 32, Ipv6PrefixLength: 64},
		Tiers:          []*pushv1.Tier{{Name: "all"}},
	}
	for _, option := range options {
		option(p)
	}
	return p
}

// rule admits so many requests a minute, exactly; options change it.
func rule(name string, requests int64, options ...func(*pushv1.Rule)) func(*pushv1.Policy) {
	return func(p *pushv1.Policy) {
		r := &pushv1.Rule{
			Name: name, Algorithm: pushv1.Rule_ALGORITHM_SLIDING_WINDOW_LOG, Key: []string{"identity.key"},
			MissingKey: pushv1.Rule_MISSING_KEY_CLIENT_IP,
			Response:   &pushv1.Response{RateLimit: true, Legacy: true},
			Limits: []*pushv1.TierLimits{{
				Tier: "all", Limits: []*pushv1.Limit{{Requests: requests, Window: durationpb.New(time.Minute)}},
			}},
		}
		for _, option := range options {
			option(r)
		}
		p.Rules = append(p.Rules, r)
	}
}

// under narrows a rule to a path prefix.
func under(prefix string) func(*pushv1.Rule) {
	return func(r *pushv1.Rule) {
		r.Match = append(r.Match, &pushv1.Match{Path: &pushv1.Match_StringMatch{Type: pushv1.Match_TYPE_PREFIX, Value: prefix}})
	}
}

// body makes a rule's refusals say what an expression yields.
func body(expression string) func(*pushv1.Rule) {
	return func(r *pushv1.Rule) {
		r.Response.BodyContentType, r.Response.BodyExpression = "text/plain", expression
	}
}

// updateOf encodes policies and secrets as they are pushed.
func updateOf(tb testing.TB, secrets *pushv1.Secrets, policies ...*pushv1.Policy) *pushv1.Update {
	tb.Helper()
	if secrets == nil {
		secrets = &pushv1.Secrets{}
	}
	secrets.Stores = append(secrets.Stores, &pushv1.Store{Name: "memory", Topology: pushv1.Store_TOPOLOGY_MEMORY})
	encoded, err := proto.Marshal(secrets)
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := proto.Marshal(&pushv1.RuleSet{Policies: policies})
	if err != nil {
		tb.Fatal(err)
	}
	return &pushv1.Update{ContentVersion: "v1", RuleSet: rules, Secrets: encoded}
}

// newGuard enforces an update. Its clock is the machine's.
func newGuard(tb testing.TB, u *pushv1.Update, options ...func(*guardOptions)) *sidecar.Guard {
	tb.Helper()
	o := guardOptions{clock: clock.Real()}
	for _, option := range options {
		option(&o)
	}
	log := slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	local := memory.New(memory.Options{})
	metrics := sidecar.NewMetrics(local)
	guard := sidecar.NewGuard(limiter.NewEngine(local), metrics, o.clock, false)
	loader, err := sidecar.NewLoader(guard, sidecar.NewStores(local, metrics, log), o.clock, o.refresh, log)
	if err != nil {
		tb.Fatal(err)
	}
	results, err := loader.Load(u)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range results {
		if r.GetError() != "" {
			tb.Fatalf("policy %s: %s", r.GetPolicy(), r.GetError())
		}
	}
	return guard
}

type guardOptions struct {
	clock   clock.Clock
	refresh func(policy, issuer, keyID string)
}

// serve puts a guard before an upstream, as the sidecar does, and returns its address.
func serve(tb testing.TB, guard *sidecar.Guard, upstream string) string {
	tb.Helper()
	to, err := url.Parse(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	return serveHandler(tb, guard.Handler(proxy.New(proxy.To(to), log)))
}

func serveHandler(tb testing.TB, h http.Handler) string {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := listen.NewServer(h, true, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	tb.Cleanup(func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

// mirror is an application that answers with the request it got, one line a header.
func mirror(tb testing.TB) string {
	tb.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit", `"the application's own"`)
		fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
		body, _ := io.ReadAll(r.Body) // what a caller breaks off is cut short
		for _, h := range []http.Header{r.Header, r.Trailer} {
			lines := make([]string, 0, len(h))
			for name, values := range h {
				for _, v := range values {
					lines = append(lines, name+": "+v)
				}
			}
			slices.Sort(lines)
			fmt.Fprintln(w, strings.Join(lines, "\n"))
		}
		fmt.Fprintf(w, "body: %s\n", body)
	}))
	tb.Cleanup(server.Close)
	return server.URL
}

// raw sends bytes from a loopback address and reads one answer.
func raw(t *testing.T, from, to, request string) (status int, header http.Header, text string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q is not answered: %v", request, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(data)
}

// spelled is a field of exactly this spelling, as HTTP/1.1 sends it.
func spelled(h http.Header, name string) string { return strings.Join(h[name], "\n") }
