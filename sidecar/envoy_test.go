package sidecar_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/envoy"
)

// decisionAPI is a connection to the decision API, as Envoy makes one.
func decisionAPI(t *testing.T, options ...func(*pushv1.Policy)) *grpc.ClientConn {
	t.Helper()
	guard := newGuard(t, updateOf(t, nil, policy(options...)))
	conn, err := grpc.NewClient(serveHandler(t, envoy.Handler(guard, guard.Decisions())), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func descriptor(entries map[string]string) *ratelimitcommon.RateLimitDescriptor {
	d := &ratelimitcommon.RateLimitDescriptor{}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		d.Entries = append(d.Entries, &ratelimitcommon.RateLimitDescriptor_Entry{Key: key, Value: entries[key]})
	}
	return d
}

func TestEnvoyAsksItsRateLimitService(t *testing.T) {
	t.Parallel()
	client := ratelimitv3.NewRateLimitServiceClient(decisionAPI(t,
		rule("api", 3, under("/api")), rule("gold", 1, func(r *pushv1.Rule) { r.When = `request.headers["x-plan"] == "gold"` })))
	ask := func(hits uint32, d *ratelimitcommon.RateLimitDescriptor) *ratelimitv3.RateLimitResponse {
		out, err := client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
			Domain: "ns/shop", HitsAddend: hits, Descriptors: []*ratelimitcommon.RateLimitDescriptor{d},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	api := map[string]string{"method": "GET", "path": "/api/x?y=z", "remote_address": "198.51.100.7"}
	first := ask(2, descriptor(api))
	s := first.GetStatuses()[0]
	if first.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || s.GetLimitRemaining() != 1 || s.GetCurrentLimit().GetRequestsPerUnit() != 3 ||
		s.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_MINUTE || s.GetDurationUntilReset().AsDuration() > time.Minute {
		t.Errorf("two hits: %v", first)
	}
	own := descriptor(api)
	own.HitsAddend = wrapperspb.UInt64(2)
	refused := ask(1, own)
	told := map[string]string{}
	for _, h := range refused.GetResponseHeadersToAdd() {
		told[h.GetKey()] = h.GetValue()
	}
	if refused.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT || told["Retry-After"] == "" || told["RateLimit-Limit"] != "3" || len(refused.GetRawBody()) == 0 {
		t.Errorf("two more: %v", refused)
	}
	api["remote_address"] = "203.0.113.9"
	if other := ask(1, descriptor(api)); other.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("another caller: %v", other)
	}
	gold := descriptor(map[string]string{"header.x-plan": "gold", "remote_address": "203.0.113.9"})
	if out := []ratelimitv3.RateLimitResponse_Code{ask(1, gold).GetOverallCode(), ask(1, gold).GetOverallCode()}; out[0] != ratelimitv3.RateLimitResponse_OK || out[1] != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("by a header: %v", out)
	}
	gold.Entries = append(gold.Entries, &ratelimitcommon.RateLimitDescriptor_Entry{Key: "generic_key", Value: "api"})
	if out := ask(1, gold); out.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("narrowed to another rule: %v", out)
	}
	for domain, want := range map[string]codes.Code{"ns/none": codes.NotFound, "ns/shop": codes.InvalidArgument} {
		if _, err := client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
			Domain: domain, Descriptors: []*ratelimitcommon.RateLimitDescriptor{descriptor(map[string]string{"remote_address": "somewhere"})},
		}); status.Code(err) != want {
			t.Errorf("domain %s: %v, want %s", domain, err, want)
		}
	}
}

func TestEnvoyAsksForAuthorization(t *testing.T) {
	t.Parallel()
	client := authv3.NewAuthorizationClient(decisionAPI(t, rule("api", 1, under("/api")), func(p *pushv1.Policy) {
		p.Identity.TrustedHeaders = &pushv1.Identity_TrustedHeaders{Id: "x-auth-user"}
	}))
	ask := func(path string) *authv3.CheckResponse {
		out, err := client.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Source: &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: "198.51.100.7", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 4711}},
			}}},
			Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
				Method: "GET", Path: path, Host: "shop.example", Headers: map[string]string{":path": path, "x-auth-user": "root", "accept": "*/*"},
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	allowed := ask("/api/x?y=z")
	ok := allowed.GetOkResponse()
	if codes.Code(allowed.GetStatus().GetCode()) != codes.OK || !slices.Equal(ok.GetHeadersToRemove(), []string{"x-auth-user"}) || len(ok.GetResponseHeadersToAdd()) == 0 {
		t.Errorf("the first: %v", allowed)
	}
	refused := ask("//api").GetDeniedResponse()
	if refused.GetStatus().GetCode() != 429 || refused.GetBody() == "" || len(refused.GetHeaders()) == 0 {
		t.Errorf("the second: %v", refused)
	}
	if other := ask("/other"); codes.Code(other.GetStatus().GetCode()) != codes.OK {
		t.Errorf("where no rule applies: %v", other)
	}
}
