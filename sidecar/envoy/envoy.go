// Package envoy answers Envoy's two questions over gRPC: its rate limit service (RLS v3), which asks by descriptors, and its
// external authorization (ext_authz v3), which asks with the whole request. Both ask the guard that the proxy asks.
package envoy

import (
	"bytes"
	"net/http"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-dev/sluice/sidecar"
	"github.com/sluice-dev/sluice/sidecar/answer"
)

const maxMessage = 1 << 20

// Handler serves both services beside other handlers of the same port: it takes gRPC calls, and leaves the rest to next.
func Handler(g *sidecar.Guard, next http.Handler) http.Handler {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage))
	ratelimitv3.RegisterRateLimitServiceServer(server, &rateLimit{guard: g})
	authv3.RegisterAuthorizationServer(server, &authorization{guard: g})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && answer.IsGRPC(r) {
			server.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// page is an answer that is kept instead of sent.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *page) Header() http.Header { return p.header }

func (p *page) WriteHeader(status int) { p.status = status }

func (p *page) Write(data []byte) (int, error) { return p.body.Write(data) }

// render writes a refusal as it would be sent to a caller of plain HTTP.
func render(r *answer.Refusal, method string) *page {
	p := &page{header: http.Header{}}
	r.Write(p, &http.Request{Method: method, Header: http.Header{}})
	p.header.Del("Content-Length") // Envoy counts by itself
	return p
}

func options(h http.Header) []*corev3.HeaderValueOption {
	list := make([]*corev3.HeaderValueOption, 0, len(h))
	for _, v := range values(h) {
		list = append(list, &corev3.HeaderValueOption{Header: v, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD})
	}
	return list
}

func values(h http.Header) []*corev3.HeaderValue {
	list := make([]*corev3.HeaderValue, 0, len(h))
	for name, lines := range h {
		for _, value := range lines {
			list = append(list, &corev3.HeaderValue{Key: name, Value: value})
		}
	}
	slices.SortFunc(list, func(a, b *corev3.HeaderValue) int { return bytes.Compare([]byte(a.GetKey()), []byte(b.GetKey())) })
	return list
}
