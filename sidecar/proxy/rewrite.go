package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
)

// rewrite keeps the caller's host, path and query as they came, extends the forwarding headers, and passes trailers on.
func rewrite(pr *httputil.ProxyRequest, target Target) {
	to := target(pr.In)
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = to.Scheme, to.Host, pr.In.URL.RawQuery
	pr.Out.Host = pr.In.Host
	forward(pr)
	if pr.Out.Body != nil && pr.Out.Body != http.NoBody {
		pr.Out.Body = &body{ReadCloser: pr.Out.Body, in: pr.In, out: pr.Out}
	}
	// Upgrading to HTTP/2 would lead all further requests of the connection past the limiter. RFC 9113 has dropped it, and
	// whoever asks for it is content with HTTP/1.1.
	if httpguts.HeaderValuesContainsToken(pr.Out.Header["Upgrade"], "h2c") {
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
	pr.Out.Header.Del("Http2-Settings")
}

// forward extends what the caller sent: who was asked for and how is told by the first proxy, who called by each.
func forward(pr *httputil.ProxyRequest) {
	in, out := pr.In.Header, pr.Out.Header
	out["X-Forwarded-For"] = in["X-Forwarded-For"]
	pr.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if in[name] != nil {
			out[name] = in[name]
		}
	}
	if in["Forwarded"] != nil {
		out["Forwarded"] = []string{strings.Join(append(slices.Clone(in["Forwarded"]), "for="+node(pr.In.RemoteAddr)), ", ")}
	}
}

// node writes an address as RFC 7239 wants it.
func node(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	switch {
	case err != nil:
		return "unknown"
	case strings.Contains(host, ":"):
		return `"[` + host + `]"`
	default:
		return host
	}
}

// body is what the caller sends. It hands the announced trailers on when it has ended, which is when they are known, and
// remembers whether it is the caller who broke off.
type body struct {
	io.ReadCloser
	in, out *http.Request
	broken  atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		for name := range b.out.Trailer {
			b.out.Trailer[name] = b.in.Trailer[name]
		}
	case err != nil:
		b.broken.Store(true)
	}
	return n, err
}
