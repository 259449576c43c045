package envoy

import (
	"context"
	"net/http"
	"strings"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-dev/sluice/sidecar"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

type authorization struct {
	authv3.UnimplementedAuthorizationServer
	guard *sidecar.Guard
}

// Check holds a request that must wait, since Envoy can't.
func (a *authorization) Check(ctx context.Context, in *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	asked := in.GetAttributes().GetRequest().GetHttp()
	r, err := sidecar.RequestOf(ctx, asked.GetMethod(), asked.GetPath(), asked.GetHost(), in.GetAttributes().GetSource().GetAddress().GetSocketAddress().GetAddress())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.ContentLength = asked.GetSize()
	for name, value := range asked.GetHeaders() {
		if !strings.HasPrefix(name, ":") {
			r.Header.Set(name, value)
		}
	}
	before := r.Header.Clone()
	verdict, err := a.guard.Decide(r, rules.Question{Multiply: 1})
	if err == nil && verdict.Refusal == nil {
		err = a.guard.Wait(ctx, verdict)
	}
	if err != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if verdict.Refusal != nil {
		return denied(verdict, asked.GetMethod()), nil
	}
	fields := headerOf(verdict)
	return &authv3.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(codes.OK)},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
			ResponseHeadersToAdd: options(fields), HeadersToRemove: missing(before, r.Header),
		}},
	}, nil
}

func denied(v *sidecar.Verdict, method string) *authv3.CheckResponse {
	p := render(v.Refusal, method)
	return &authv3.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied), Message: v.Refusal.Problem.Title},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(p.status)}, //nolint:gosec // a status of HTTP
			Body:   p.body.String(), Headers: options(p.header),
		}},
	}
}

func headerOf(v *sidecar.Verdict) http.Header {
	h := http.Header{}
	v.Fields.Set(h)
	return h
}

// missing lists what the guard took away.
func missing(before, after http.Header) []string {
	var names []string
	for name := range before {
		if _, kept := after[name]; !kept {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
