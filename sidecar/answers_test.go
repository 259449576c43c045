package sidecar_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

func window(requests int64, length time.Duration) func(*pushv1.Rule) {
	return func(r *pushv1.Rule) {
		r.Limits[0].Limits = append(r.Limits[0].Limits, &pushv1.Limit{Requests: requests, Window: durationpb.New(length)})
	}
}

func respond(set func(*pushv1.Response)) func(*pushv1.Rule) {
	return func(r *pushv1.Rule) { set(r.GetResponse()) }
}

func shadow(r *pushv1.Rule) { r.Shadow = true }

// at puts a guard's clock where the fields' arithmetic is known; counters run by the machine's.
func at(unix int64) func(*guardOptions) {
	return func(o *guardOptions) { o.clock = clock.NewFake(time.Unix(unix, 0)) }
}

func TestFieldsOfAdmittedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules []func(*pushv1.Policy)
		want  map[string]string
	}{
		"one limit": {
			[]func(*pushv1.Policy){rule("api", 5)},
			map[string]string{
				"RateLimit-Policy": `"shop/api";q=5;w=60`, "RateLimit": `"shop/api";r=4;t=60`,
				"RateLimit-Limit": "5", "RateLimit-Remaining": "4", "RateLimit-Reset": "60", "X-RateLimit-Limit": "", "RateLimit-Shadow": "", "Retry-After": "",
			},
		},
		"several windows": {
			[]func(*pushv1.Policy){rule("api", 5, window(2, time.Second), window(100, 100*time.Second))},
			map[string]string{
				"RateLimit-Policy": `"shop/api/1m";q=5;w=60, "shop/api/1s";q=2;w=1, "shop/api/1m40s";q=100;w=100`,
				"RateLimit":        `"shop/api/1m";r=4;t=60, "shop/api/1s";r=1;t=1, "shop/api/1m40s";r=99;t=100`,
				"RateLimit-Limit":  "2", "RateLimit-Remaining": "1", "RateLimit-Reset": "1",
			},
		},
		"several rules": {
			[]func(*pushv1.Policy){rule("wide", 100), rule("narrow", 3)},
			map[string]string{
				"RateLimit-Policy": `"shop/wide";q=100;w=60, "shop/narrow";q=3;w=60`, "RateLimit-Limit": "3", "RateLimit-Remaining": "2",
			},
		},
		"one rule hides its own": {
			[]func(*pushv1.Policy){rule("wide", 100), rule("narrow", 3, respond(func(r *pushv1.Response) { r.RateLimit, r.Legacy = false, false }))},
			map[string]string{"RateLimit-Policy": `"shop/wide";q=100;w=60`, "RateLimit-Limit": "100"},
		},
		"X-RateLimit in Unix time": {
			[]func(*pushv1.Policy){rule("api", 5, respond(func(r *pushv1.Response) { r.RateLimit, r.XRateLimit, r.UnixReset = false, true, true }))},
			map[string]string{
				"RateLimit": "", "RateLimit-Policy": "", "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "1700000060", "RateLimit-Reset": "1700000060",
			},
		},
		"a window below a second": {
			[]func(*pushv1.Policy){rule("api", 5, func(r *pushv1.Rule) { r.Limits[0].Limits[0].Window = durationpb.New(1500 * time.Millisecond) })},
			map[string]string{"RateLimit-Policy": `"shop/api";q=5;w=2`, "RateLimit-Reset": "2"},
		},
		"a rule in Shadow that would refuse": {
			[]func(*pushv1.Policy){rule("api", 5), rule("new", 0, shadow)},
			map[string]string{"RateLimit-Policy": `"shop/api";q=5;w=60`, "RateLimit-Limit": "5", "RateLimit-Shadow": `"shop/new"`, "Retry-After": ""},
		},
		"a rule in Shadow that would not": {
			[]func(*pushv1.Policy){rule("new", 5, shadow)},
			map[string]string{"RateLimit-Policy": "", "RateLimit-Limit": "", "RateLimit-Shadow": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, newGuard(t, updateOf(t, nil, policy(c.rules...)), at(1_700_000_000)), mirror(t))
			code, header, _ := raw(t, stranger, address, to("/"))
			for field, want := range c.want {
				if got := strings.Join(header.Values(field), "\n"); got != want || code != http.StatusOK {
					t.Errorf("%d, %s: %q, want %q", code, field, got, want)
				}
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules  []func(*pushv1.Policy)
		header map[string]string // of the second request
		want   string            // its body, where R stands for retryAfter
	}{
		"a problem": {
			[]func(*pushv1.Policy){rule("api", 1)},
			map[string]string{"Content-Type": "application/problem+json", "RateLimit": `"shop/api";r=0;t=60`, "RateLimit-Limit": "1", "Cache-Control": "no-store"},
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"1 of 1 requests per 1m are used","violated-policies":["shop/api"],"policy":"ns/shop","rule":"api","tier":"all","limit":1,"currentCount":1,"retryAfter":R}` + "\n",
		},
		"the limit that refuses longest speaks": {
			[]func(*pushv1.Policy){rule("api", 1, window(1, time.Hour)), rule("other", 5)},
			nil,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"1 of 1 requests per 1h are used","violated-policies":["shop/api/1m","shop/api/1h"],"policy":"ns/shop","rule":"api","tier":"all","limit":1,"currentCount":1,"retryAfter":R}` + "\n",
		},
		"never admitted": {
			[]func(*pushv1.Policy){rule("api", 0)},
			map[string]string{"Retry-After": ""},
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"The request can never be admitted: it costs more than the limit of 0","violated-policies":["shop/api"],"policy":"ns/shop","rule":"api","tier":"all","limit":0,"currentCount":0}` + "\n",
		},
		"a body of one's own": {
			[]func(*pushv1.Policy){rule("api", 1, respond(func(r *pushv1.Response) {
				r.BodyContentType, r.BodyExpression = "application/json", `{"error": "slow down", "limit": decision.limit, "count": decision.currentCount, "rule": decision.policy + "." + decision.rule}`
			}))},
			map[string]string{"Content-Type": "application/json"},
			`{"count":1,"error":"slow down","limit":1,"rule":"ns/shop.api"}`,
		},
		"a body that can't be made": {
			[]func(*pushv1.Policy){rule("api", 0, body(`string(1 / request.size)`))},
			map[string]string{"Content-Type": "application/problem+json"},
			"",
		},
		"no fields": {
			[]func(*pushv1.Policy){rule("api", 1, respond(func(r *pushv1.Response) { r.RateLimit, r.Legacy = false, false }))},
			map[string]string{"RateLimit": "", "RateLimit-Limit": "", "RateLimit-Policy": ""},
			"",
		},
		"no key, and the rule rejects": {
			[]func(*pushv1.Policy){rule("api", 5, func(r *pushv1.Rule) {
				r.Key, r.MissingKey = []string{`request.headers["x-none"]`}, pushv1.Rule_MISSING_KEY_REJECT
			})},
			map[string]string{"Retry-After": "", "Content-Type": "application/problem+json"},
			"",
		},
		"no key, and the rule in Shadow would reject": {
			[]func(*pushv1.Policy){rule("api", 0, body(`"the other rule"`)), rule("new", 5, shadow, func(r *pushv1.Rule) {
				r.Key, r.MissingKey = []string{`request.headers["x-none"]`}, pushv1.Rule_MISSING_KEY_REJECT
			})},
			nil, "the other rule",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, newGuard(t, updateOf(t, nil, policy(c.rules...))), mirror(t))
			raw(t, stranger, address, to("/"))
			code, header, text := raw(t, stranger, address, to("/"))
			want := strings.Replace(c.want, "R}", header.Get("Retry-After")+"}", 1)
			if code != http.StatusTooManyRequests || c.want != "" && text != want {
				t.Errorf("%d %s\nwant %s", code, text, want)
			}
			for field, want := range c.header {
				if got := strings.Join(header.Values(field), "\n"); got != want {
					t.Errorf("%s: %q, want %q", field, got, want)
				}
			}
		})
	}
}

func TestAStoreThatCantBeAsked(t *testing.T) {
	t.Parallel()
	u := updateOf(t, &pushv1.Secrets{Stores: []*pushv1.Store{{
		Name: "away", Topology: pushv1.Store_TOPOLOGY_STANDALONE, Addresses: []string{"127.0.0.1:1"}, Timeout: durationpb.New(50 * time.Millisecond),
	}}}, policy(rule("api", 5), func(p *pushv1.Policy) { p.Store, p.OnStoreFailure = "away", pushv1.Policy_ON_STORE_FAILURE_DENY }))
	address := serve(t, newGuard(t, u), mirror(t))
	code, header, text := raw(t, stranger, address, to("/"))
	var problem map[string]any
	if err := json.Unmarshal([]byte(text), &problem); err != nil {
		t.Fatal(err)
	}
	if code != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" ||
		problem["type"] != "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity" || problem["rule"] != "api" {
		t.Errorf("%d %v %s", code, header, text)
	}
}

// calls is the application behind gRPC.
type calls struct {
	testgrpc.UnimplementedTestServiceServer
}

func (calls) EmptyCall(ctx context.Context, _ *testgrpc.Empty) (*testgrpc.Empty, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("fail")) > 0 {
		return nil, status.Error(codes.DataLoss, "as asked")
	}
	return &testgrpc.Empty{}, nil
}

func (calls) StreamingOutputCall(r *testgrpc.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
	for range r.GetResponseParameters() {
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
	return nil
}

func (calls) StreamingInputCall(s grpc.ClientStreamingServer[testgrpc.StreamingInputCallRequest, testgrpc.StreamingInputCallResponse]) error {
	var n int32
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: n})
		}
		if err != nil {
			return err
		}
		n += int32(len(in.GetPayload().GetBody()))
	}
}

func (calls) FullDuplexCall(s grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

// grpcClient calls through a sidecar that refuses the unary call's second try.
func grpcClient(t *testing.T) testgrpc.TestServiceClient {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(server, calls{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	p := policy(rule("unary", 1, under("/grpc.testing.TestService/UnaryCall")), rule("all", 1000))
	conn, err := grpc.NewClient(serve(t, newGuard(t, updateOf(t, nil, p)), "http://"+l.Addr().String()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}

func TestGRPCPassesInAllKindsOfCalls(t *testing.T) {
	t.Parallel()
	client := grpcClient(t)
	payload := &testgrpc.Payload{Body: make([]byte, 70_000)}
	var header metadata.MD
	if _, err := client.EmptyCall(t.Context(), &testgrpc.Empty{}, grpc.Header(&header)); err != nil || header.Get("ratelimit-remaining")[0] != "999" {
		t.Errorf("unary: %v, %v", err, header)
	}
	if _, err := client.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "fail", "1"), &testgrpc.Empty{}); status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "as asked" {
		t.Errorf("a failing call: %v", err)
	}
	out, err := client.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{Payload: payload, ResponseParameters: make([]*testgrpc.ResponseParameters, 3)})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		message, err := out.Recv()
		if n == 3 && !errors.Is(err, io.EOF) || n < 3 && (err != nil || len(message.GetPayload().GetBody()) != 70_000) {
			t.Errorf("server's stream, message %d: %v", n, err)
		}
	}
	in, err := client.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := in.Send(&testgrpc.StreamingInputCallRequest{Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := in.CloseAndRecv(); err != nil || sum.GetAggregatedPayloadSize() != 210_000 {
		t.Errorf("caller's stream: %v, %v", sum, err)
	}
	both, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 { // each message waits for the answer to the one before
		if err := both.Send(&testgrpc.StreamingOutputCallRequest{Payload: payload}); err != nil {
			t.Fatal(err)
		}
		if message, err := both.Recv(); err != nil || len(message.GetPayload().GetBody()) != 70_000 {
			t.Errorf("both ways, message %d: %v", n, err)
		}
	}
	if err := both.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("both ways ended with %v", err)
	}
}

func TestGRPCIsRefusedWithItsOwnStatus(t *testing.T) {
	t.Parallel()
	client := grpcClient(t)
	if _, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Unimplemented {
		t.Fatalf("the first call: %v, want what the application says", err)
	}
	var header, trailer metadata.MD
	_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	var retry *errdetails.RetryInfo
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			retry = info
		}
	}
	if status.Code(err) != codes.ResourceExhausted || retry.GetRetryDelay().AsDuration() <= 0 || retry.GetRetryDelay().AsDuration() > time.Minute {
		t.Errorf("%v, retry %v; want RESOURCE_EXHAUSTED that says when to come back", err, retry)
	}
	if len(header) != 0 || len(trailer.Get("ratelimit-limit")) == 0 {
		t.Errorf("headers %v, trailers %v; want trailers only", header, trailer)
	}
}
