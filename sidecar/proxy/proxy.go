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
	"sync"
	"time"

	"github.com/sluice-dev/sluice/sidecar/answer"
)

const (
	bufferSize     = 16 << 10
	idlePerHost    = 512
	dialTimeout    = 5 * time.Second
	idleKeptFor    = 90 * time.Second
	keepAliveProbe = 30 * time.Second
	// continueWithin is how long the application may take to ask for the body of a request that expects 100-continue.
	continueWithin = time.Second
)

// Target tells where a request goes.
type Target func(*http.Request) *url.URL

// To sends every request to one address.
func To(u *url.URL) Target { return func(*http.Request) *url.URL { return u } }

// New returns a handler that passes requests on.
func New(target Target, log *slog.Logger) http.Handler {
	proxy := reverseProxy(target, log)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && r.Body != http.NoBody {
			// The application may answer while the caller still sends. Where that can't be, it waits, as it would without this.
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
		proxy.ServeHTTP(w, r)
	})
}

func reverseProxy(target Target, log *slog.Logger) *httputil.ReverseProxy {
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
			if b, ok := r.Body.(*body); ok && b.broken.Load() {
				answer.BadRequest("The request's body can't be read").Write(w, r)
				return
			}
			log.Warn("upstream can't be reached", "upstream", target(r).Host, "error", err)
			answer.BadGateway(answer.FieldsFrom(r.Context())).Write(w, r)
		},
	}
}

// transport speaks HTTP/2 without TLS to the application where the caller did, as gRPC needs, and HTTP/1.1 otherwise.
type transport struct{ one, two *http.Transport }

func newTransport() *transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAliveProbe}
	build := func(p *http.Protocols) *http.Transport {
		return &http.Transport{
			DialContext: dialer.DialContext, DisableCompression: true, Protocols: p,
			MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleKeptFor, ExpectContinueTimeout: continueWithin,
		}
	}
	var one, two http.Protocols
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	two.SetHTTP2(true)
	return &transport{build(&one), build(&two)}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.ProtoMajor == 2 && answer.IsGRPC(r) {
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
