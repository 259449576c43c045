// Package probe sends the kubelet's probes to the application in the kubelet's stead, past the limiter. It sends only
// what the pod's spec declares: nothing of the caller's request passes.
package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-dev/sluice/internal/clock"
)

// Probe is one declared probe: exactly one of HTTP, TCP and GRPC is set.
type Probe struct {
	Name string `json:"name"`
	HTTP *struct {
		Path    string `json:"path"`
		Port    int    `json:"port"`
		Scheme  string `json:"scheme"`
		Host    string `json:"host"`
		Headers []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"headers"`
	} `json:"http"`
	TCP *struct {
		Port int `json:"port"`
	} `json:"tcp"`
	GRPC *struct {
		Port    int    `json:"port"`
		Service string `json:"service"`
	} `json:"grpc"`
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// ErrProbe tells that the application did not pass its probe.
var ErrProbe = errors.New("probe failed")

const (
	maxRedirects = 10
	host         = "127.0.0.1"
)

// Handler answers /probe/<index> with 200 where the probe at that index passes. Calls at the same time, and those that come
// soon after, share one result: the port is open to the cluster, and must not be a way to keep the application busy.
type Handler struct {
	probes []Probe
	calls  singleflight.Group
	client *http.Client
	clock  clock.Clock

	mu      sync.Mutex
	results map[int]result
}

type result struct {
	err error
	at  time.Time
}

// fresh is how long a result holds: less than the kubelet's shortest period.
const fresh = 500 * time.Millisecond

// NewHandler reads the JSON array of probes; "" is none.
func NewHandler(text string, c clock.Clock) (*Handler, error) {
	h := &Handler{clock: c, results: map[int]result{}, client: &http.Client{
		// The kubelet does not verify certificates, since it calls pods by their address.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, //nolint:gosec // see above
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fmt.Errorf("%w: %d redirects", ErrProbe, maxRedirects)
			}
			if r.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse // elsewhere: the kubelet does not follow, and is content
			}
			return nil
		},
	}}
	if text == "" {
		return h, nil
	}
	if err := json.Unmarshal([]byte(text), &h.probes); err != nil {
		return nil, fmt.Errorf("read probes: %w", err)
	}
	return h, nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	index, err := strconv.Atoi(r.PathValue("index"))
	if err != nil || index < 0 || index >= len(h.probes) {
		http.NotFound(w, r)
		return
	}
	shared := context.WithoutCancel(r.Context()) // the result outlives the caller that asked first
	_, err, _ = h.calls.Do(strconv.Itoa(index), func() (any, error) { return nil, h.result(shared, index) })
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// result is the last one where it is fresh, else a new one.
func (h *Handler) result(ctx context.Context, index int) error {
	h.mu.Lock()
	last, found := h.results[index]
	h.mu.Unlock()
	if found && h.clock.Now().Sub(last.at) < fresh {
		return last.err
	}
	err := h.run(ctx, &h.probes[index])
	h.mu.Lock()
	defer h.mu.Unlock()
	h.results[index] = result{err, h.clock.Now()}
	return err
}

func (h *Handler) run(ctx context.Context, p *Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(1, p.TimeoutSeconds))*time.Second)
	defer cancel()
	switch {
	case p.HTTP != nil:
		return h.http(ctx, p)
	case p.TCP != nil:
		return tcp(ctx, p.TCP.Port)
	case p.GRPC != nil:
		return health(ctx, p.GRPC.Port, p.GRPC.Service)
	default:
		return fmt.Errorf("%w: nothing is declared", ErrProbe)
	}
}

func (h *Handler) http(ctx context.Context, p *Probe) error {
	scheme := "http"
	if p.HTTP.Scheme == "HTTPS" {
		scheme = "https"
	}
	url := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(p.HTTP.Port)) + p.HTTP.Path
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	for _, header := range p.HTTP.Headers {
		r.Header.Add(header.Name, header.Value)
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", "kube-probe/sluice")
	}
	r.Host = cmp.Or(r.Header.Get("Host"), p.HTTP.Host, r.Host)
	response, err := h.client.Do(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	if err := response.Body.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%w: status %d", ErrProbe, response.StatusCode)
	}
	return nil
}

func tcp(ctx context.Context, port int) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	return nil
}

func health(ctx context.Context, port int, service string) error {
	conn, err := grpc.NewClient(net.JoinHostPort(host, strconv.Itoa(port)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	response, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	if closeErr := conn.Close(); err == nil && closeErr != nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProbe, err)
	}
	if response.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%w: %s", ErrProbe, response.GetStatus())
	}
	return nil
}
