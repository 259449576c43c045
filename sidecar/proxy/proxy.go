// Package proxy passes requests on to the application and its answers back, streaming both. It decides nothing.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/sidecar/answer"
)

const (
	bufferSize     = 32 << 10
	idlePerHost    = 512
	dialTimeout    = 5 * time.Second
	idleKeptFor    = 90 * time.Second
	keepAliveProbe = 30 * time.Second
)

// Target tells where a request goes.
type Target func(*http.Request) *url.URL

// To sends every request to one address.
func To(u *url.URL) Target { return func(*http.Request) *url.URL { return u } }

// New returns a handler that passes requests on.
func New(target Target, log *slog.Logger) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       func(pr *httputil.ProxyRequest) { rewrite(pr, target) },
		Transport:     newTransport(),
		FlushInterval: -1, // server-sent events and gRPC streams
		BufferPool:    &buffers{sync.Pool{New: func() any { return new([bufferSize]byte) }}},
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ModifyResponse: func(r *http.Response) error {
			if fields := answer.FieldsFrom(r.Request.Context()); fields != nil {
				fields.Set(r.Header)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(r.Context().Err(), context.Canceled) {
				return // the caller left
			}
			log.Warn("upstream can't be reached", "upstream", target(r).Host, "error", err)
			answer.BadGateway(answer.FieldsFrom(r.Context())).Write(w, r)
		},
	}
}

// rewrite keeps the caller's host and path as they came and extends the forwarding headers.
func rewrite(pr *httputil.ProxyRequest, target Target) {
	to := target(pr.In)
	pr.Out.URL.Scheme, pr.Out.URL.Host = to.Scheme, to.Host
	pr.Out.Host = pr.In.Host
	pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	host, proto := pr.In.Header["X-Forwarded-Host"], pr.In.Header["X-Forwarded-Proto"]
	pr.SetXForwarded()
	if host != nil {
		pr.Out.Header["X-Forwarded-Host"] = host
	}
	if proto != nil {
		pr.Out.Header["X-Forwarded-Proto"] = proto
	}
	if pr.In.Header["Te"] != nil && strings.Contains(pr.In.Header.Get("Te"), "trailers") {
		pr.Out.Header.Set("Te", "trailers")
	}
}

// transport speaks HTTP/2 without TLS to the application where the caller did, as gRPC needs, and HTTP/1.1 otherwise.
type transport struct{ one, two *http.Transport }

func newTransport() *transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAliveProbe}
	build := func(p *http.Protocols) *http.Transport {
		return &http.Transport{
			DialContext: dialer.DialContext, DisableCompression: true, Protocols: p,
			MaxIdleConns: 0, MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleKeptFor,
			ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
		}
	}
	var one, two http.Protocols
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	return &transport{build(&one), build(&two)}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return t.two.RoundTrip(r)
	}
	return t.one.RoundTrip(r)
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte { return b.pool.Get().(*[bufferSize]byte)[:] } //nolint:forcetypeassert // nothing else is put in

func (b *buffers) Put(p []byte) {
	if len(p) == bufferSize {
		b.pool.Put((*[bufferSize]byte)(p))
	}
}
