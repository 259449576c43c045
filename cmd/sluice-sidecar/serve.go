package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar"
	"github.com/sluice-dev/sluice/sidecar/envoy"
	"github.com/sluice-dev/sluice/sidecar/listen"
	"github.com/sluice-dev/sluice/sidecar/probe"
	"github.com/sluice-dev/sluice/sidecar/proxy"
	"github.com/sluice-dev/sluice/sidecar/push"
)

const (
	// rulesWithin is how long readiness waits for the first rules before on-missing-rules decides.
	rulesWithin = 10 * time.Second
	// memoryShare of the memory limit is what Go may use before it collects harder.
	memoryShare = 0.85
)

// process is the running sidecar.
type process struct {
	o       *options
	log     *slog.Logger
	clock   clock.Clock
	guard   *sidecar.Guard
	metrics *sidecar.Metrics
	stores  *sidecar.Stores
	loader  *sidecar.Loader
	client  *push.Client
	waived  atomic.Bool // rules were waited for long enough
}

func newProcess(o *options) (*process, error) {
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.level}))
	local := memory.New(memory.Options{})
	p := &process{o: o, log: log, clock: clock.Real(), metrics: sidecar.NewMetrics(local)}
	p.guard = sidecar.NewGuard(limiter.NewEngine(local), p.metrics, p.clock, o.cluster() && o.onMissing == "deny")
	p.stores = sidecar.NewStores(local, p.metrics, log)
	p.metrics.CountLeased(p.stores.Leased)
	var refresh func(policy, issuer, keyID string)
	if o.cluster() {
		refresh = func(policy, issuer, keyID string) { p.client.Refresh(policy, issuer, keyID) }
	}
	loader, err := sidecar.NewLoader(p.guard, p.stores, p.clock, refresh, log)
	if err != nil {
		return nil, err
	}
	p.loader = loader
	return p, nil
}

// serve runs until the context ends. Whatever keeps it from starting is its error.
func serve(ctx context.Context, o *options) error {
	limitMemory()
	goredis.SetLogger(quiet{})
	p, err := newProcess(o)
	if err != nil {
		return err
	}
	defer p.stores.Close()
	group, ctx := errgroup.WithContext(ctx)
	if o.cluster() {
		p.connect(ctx, group)
	} else if err := p.loadFiles(ctx, group); err != nil {
		return err
	}
	servers, err := p.servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		group.Go(func() error {
			if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", s.Addr, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		p.log.Info("stopping", "drainTimeout", p.o.drainTimeout.String())
		p.shutdown(context.WithoutCancel(ctx), servers)
		return nil
	})
	p.log.Info("serving", "version", version, addresses(servers))
	return group.Wait()
}

// connect starts from the rules before a restart, and keeps the stream.
func (p *process) connect(ctx context.Context, group *errgroup.Group) {
	p.client = push.NewClient(push.Options{
		Address: p.o.pushAddress, CAFile: p.o.pushCA, TokenFile: p.o.pushToken, StateDir: p.o.stateDir,
		Version: version, Clock: p.clock, Log: p.log, Load: p.loadPushed,
	})
	p.client.Restore()
	group.Go(func() error {
		p.client.Run(ctx)
		return nil
	})
	group.Go(func() error {
		timer := p.clock.NewTimer(rulesWithin)
		defer timer.Stop()
		select {
		case <-timer.C():
			p.waived.Store(true)
		case <-ctx.Done():
		}
		return nil
	})
}

func (p *process) loadPushed(u *pushv1.Update) ([]*pushv1.PolicyResult, error) {
	results, err := p.loader.Load(u)
	if err == nil {
		p.log.Info("rules in force", "version", u.GetContentVersion(), "policies", len(results))
	}
	return results, err
}

// ready: with rules, or when they were waited for long enough and requests are allowed without.
func (p *process) ready() bool {
	return p.guard.Rules() != nil || p.o.onMissing == "allow" && p.waived.Load()
}

type server struct {
	*http.Server
	name     string // of the flag that gives its address
	listener net.Listener
	drains   bool
	underWay underWay
}

func addresses(servers []*server) slog.Attr {
	list := make([]any, 0, len(servers))
	for _, s := range servers {
		list = append(list, slog.String(s.name, s.Addr))
	}
	return slog.Group("addresses", list...)
}

// servers opens every port, so that one that is taken is known before anything is served.
func (p *process) servers(ctx context.Context) (list []*server, err error) {
	defer func() {
		if err != nil {
			for _, s := range list {
				err = errors.Join(err, s.listener.Close())
			}
		}
	}()
	admin := p.guard.Admin(p.ready)
	probes, err := probe.NewHandler(os.Getenv("SLUICE_PROBES"), p.clock)
	if err != nil {
		return nil, err
	}
	admin.Handle("GET /probe/{index}", probes)
	for _, s := range []struct {
		name, address string
		handler       http.Handler
	}{{"admin", p.o.admin, admin}, {"debug", p.o.debug, p.guard.Debug()}, {"decisions", p.o.decisions, envoy.Handler(p.guard, p.guard.Decisions())}} {
		if s.address == "" {
			continue
		}
		l, err := open(ctx, s.address)
		if err != nil {
			return list, err
		}
		list = append(list, p.server(s.name, l, s.handler, false))
	}
	return p.guarded(ctx, list)
}

// guarded adds the listeners in front of the application.
func (p *process) guarded(ctx context.Context, list []*server) ([]*server, error) {
	if !p.o.cluster() {
		l, err := open(ctx, p.o.listen)
		if err != nil {
			return list, err
		}
		return append(list, p.server("listen", l, p.guard.Handler(proxy.New(proxy.To(p.o.upstreamURL), p.log)), true)), nil
	}
	handler := p.guard.Handler(proxy.New(sniffedTarget, p.log))
	for address, port := range p.o.listeners {
		l, err := open(ctx, address)
		if err != nil {
			return list, err
		}
		target := listen.Original
		if port != 0 {
			target = listen.Fixed(port)
		}
		s := p.server("listen", listen.Sniff(ctx, l, target, p.metrics.Opaque, p.log), handler, true)
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			if sniffed, ok := c.(*listen.Conn); ok {
				return context.WithValue(ctx, targetKey{}, sniffed.Target)
			}
			return ctx
		}
		list = append(list, s)
	}
	return list, nil
}

// quiet drops what the Redis client prints: each error reaches the limiter, which reports it once.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

type targetKey struct{}

// sniffedTarget is where the request's connection wanted to go.
func sniffedTarget(r *http.Request) *url.URL {
	host, _ := r.Context().Value(targetKey{}).(string)
	return &url.URL{Scheme: "http", Host: host}
}

func (p *process) server(name string, l net.Listener, h http.Handler, drains bool) *server {
	s := &server{name: name, drains: drains, listener: l}
	s.Server = listen.NewServer(s.underWay.count(h), name == "listen" || name == "decisions", p.log)
	s.Addr = l.Addr().String()
	return s
}

func open(ctx context.Context, address string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, errors.Unwrap(err))
	}
	return l, nil
}

// shutdown ends the guarded servers when their requests have ended, upgraded ones too, and then the others.
func (p *process) shutdown(ctx context.Context, servers []*server) {
	ctx, cancel := context.WithTimeout(ctx, p.o.drainTimeout)
	defer cancel()
	for _, drains := range []bool{true, false} {
		var group sync.WaitGroup
		for _, s := range servers {
			if s.drains == drains {
				group.Go(func() { p.end(ctx, s) })
			}
		}
		group.Wait()
	}
}

func (p *process) end(ctx context.Context, s *server) {
	err := s.Shutdown(ctx)
	if err == nil && !s.underWay.wait(ctx) { // what was upgraded is no longer the server's
		err = ctx.Err()
	}
	if err != nil {
		p.log.Warn("requests were cut off", "address", s.Addr, "error", errors.Join(err, s.Close()))
	}
}

// underWay are the requests that are being answered.
type underWay struct{ sync.WaitGroup }

func (u *underWay) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.Add(1)
		defer u.Done()
		next.ServeHTTP(w, r)
	})
}

// wait tells whether all have ended before the context does.
func (u *underWay) wait(ctx context.Context) bool {
	ended := make(chan struct{})
	go func() {
		u.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// limitMemory keeps Go below the memory limit of its control group, unless GOMEMLIMIT says otherwise.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(file) //nolint:gosec // one of two fixed paths
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n < 1<<40 {
			debug.SetMemoryLimit(int64(float64(n) * memoryShare))
		}
		return
	}
}
