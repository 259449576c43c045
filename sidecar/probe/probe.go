// Package probe sends the kubelet's probes to the application in the kubelet's stead, past the limiter. It sends only
// what the pod's spec declares: nothing of the caller's request passes.
package probe

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
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

// Handler answers /probe/<index> with 200 where the probe at that index passes. Calls at the same time share one result.
type Handler struct {
	probes []Probe
	calls  singleflight.Group
	client *http.Client
}

// NewHandler reads the JSON array of probes; "" is none.
func NewHandler(text string) (*Handler, error) {
	h := &Handler{client: &http.Client{
		// The kubelet does not verify certificates, since it calls pods by their address.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, //nolint:gosec // see above
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return http.ErrUseLastResponse
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
	p := &h.probes[index]
	shared := context.WithoutCancel(r.Context()) // the result outlives the caller that asked first
	_, err, _ = h.calls.Do(p.Name, func() (any, error) { return nil, h.run(shared, p) })
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
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
	r.Header.Set("User-Agent", "kube-probe/sluice")
	for _, header := range p.HTTP.Headers {
		r.Header.Add(header.Name, header.Value)
	}
	if p.HTTP.Host != "" {
		r.Host = p.HTTP.Host
	}
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
