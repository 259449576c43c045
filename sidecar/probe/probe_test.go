package probe_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/sidecar/probe"
)

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// probes serves a list of probes as the sidecar's admin port does.
func probes(t *testing.T, c clock.Clock, list string) func(path string) int {
	t.Helper()
	h, err := probe.NewHandler(list, c)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /probe/{index}", h)
	return func(path string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Header.Set("X-Caller", "1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
}

func TestOnlyTheDeclaredProbeIsSentAndFrequentCallsShareOne(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	var status atomic.Int32
	status.Store(http.StatusNoContent)
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.RequestURI != "/healthz?full=1" || r.Host != "shop.example" || r.Header.Get("X-Probe") != "yes" || r.Header.Get("X-Caller") != "" || r.UserAgent() != "mine" {
			t.Errorf("%s %s %v", r.Host, r.RequestURI, r.Header)
		}
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(application.Close)
	u, err := url.Parse(application.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := clock.NewFake(time.Unix(0, 0))
	call := probes(t, c, fmt.Sprintf(`[{"name": "a", "http": {"path": "/healthz?full=1", "port": %s, "headers": [
		{"name": "Host", "value": "shop.example"}, {"name": "X-Probe", "value": "yes"}, {"name": "User-Agent", "value": "mine"}]}}]`, u.Port()))
	for range 100 {
		if got := call("/probe/0?path=/admin"); got != http.StatusOK {
			t.Fatalf("the probe gives %d", got)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("100 calls at a time came to the application as %d", calls.Load())
	}
	status.Store(http.StatusInternalServerError)
	c.Advance(time.Second)
	if got := call("/probe/0"); got != http.StatusServiceUnavailable || calls.Load() != 2 {
		t.Errorf("a second later: %d after %d calls", got, calls.Load())
	}
	for _, path := range []string{"/probe/1", "/probe/-1", "/probe/x"} {
		if got := call(path); got != http.StatusNotFound {
			t.Errorf("%s gives %d", path, got)
		}
	}
}

func TestProbesOfEachKind(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	status := health.NewServer()
	status.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(server, status)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	elsewhere := httptest.NewServer(http.RedirectHandler("http://other.example/", http.StatusFound))
	t.Cleanup(elsewhere.Close)
	port, redirecting := portOf(t, l.Addr().String()), portOf(t, elsewhere.Listener.Addr().String())
	call := probes(t, clock.Real(), fmt.Sprintf(`[
		{"name": "grpc", "grpc": {"port": %[1]s}}, {"name": "grpc", "grpc": {"port": %[1]s, "service": "ill"}}, {"tcp": {"port": %[1]s}}, {"tcp": {"port": 1}},
		{"http": {"path": "/", "port": %[2]s}}, {}]`, port, redirecting))
	for n, want := range []int{200, 503, 200, 503, 200, 503} {
		if got := call(fmt.Sprintf("/probe/%d", n)); got != want {
			t.Errorf("probe %d gives %d, want %d", n, got, want)
		}
	}
}
