package envoy

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	ratelimitcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/sidecar"
	"github.com/sluice-dev/sluice/sidecar/answer"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

type rateLimit struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	guard *sidecar.Guard
}

// ShouldRateLimit decides each descriptor as a request of its own, in the policy that the domain names. A domain that is no
// policy is an error, which Envoy counts, and not an answer that would let everything pass unseen.
func (l *rateLimit) ShouldRateLimit(ctx context.Context, in *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if set := l.guard.Rules(); set == nil || set.Find(in.GetDomain()) == nil {
		return nil, status.Errorf(codes.NotFound, "domain %q is no policy in force here: give namespace/name", in.GetDomain())
	}
	out := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}
	var shown *sidecar.Verdict
	for _, d := range in.GetDescriptors() {
		verdict, err := l.decide(ctx, in, d)
		if err != nil {
			return nil, err
		}
		s := statusOf(verdict)
		out.Statuses = append(out.Statuses, s)
		if refused := s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT; refused || shown == nil {
			shown = verdict
		}
		out.OverallCode = max(out.GetOverallCode(), s.GetCode())
	}
	if shown == nil {
		return out, nil
	}
	h := headerOf(shown)
	if shown.Refusal != nil {
		p := render(shown.Refusal, http.MethodGet)
		h, out.RawBody = p.header, p.body.Bytes()
	}
	out.ResponseHeadersToAdd = values(h)
	return out, nil
}

func (l *rateLimit) decide(ctx context.Context, in *ratelimitv3.RateLimitRequest, d *ratelimitcommon.RateLimitDescriptor) (*sidecar.Verdict, error) {
	entries, header := map[string]string{}, http.Header{}
	for _, e := range d.GetEntries() {
		if name, found := strings.CutPrefix(e.GetKey(), "header."); found {
			header.Set(name, e.GetValue())
			continue
		}
		entries[e.GetKey()] = e.GetValue()
	}
	r, err := sidecar.RequestOf(ctx, entries["method"], entries["path"], header.Get("Host"), entries["remote_address"])
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.Header = header
	verdict, err := l.guard.Decide(r, rules.Question{Multiply: hits(in, d), Policy: in.GetDomain(), Rule: entries["generic_key"]})
	if err != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return verdict, nil
}

// hits is what a request's cost is multiplied with: 1 unless Envoy says otherwise.
func hits(in *ratelimitv3.RateLimitRequest, d *ratelimitcommon.RateLimitDescriptor) int64 {
	switch {
	case d.GetHitsAddend() != nil:
		return int64(min(d.GetHitsAddend().GetValue(), math.MaxInt32))
	case in.GetHitsAddend() > 0:
		return int64(in.GetHitsAddend())
	default:
		return 1
	}
}

func statusOf(v *sidecar.Verdict) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	out := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
	if v.Refusal != nil {
		out.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	d, at := v.Speaker()
	if d == nil {
		return out
	}
	out.CurrentLimit = limitOf(d, at)
	out.LimitRemaining = uint32(min(d.Limits[at].Remaining, math.MaxInt32)) //nolint:gosec // bounded
	out.DurationUntilReset = durationpb.New(d.Limits[at].ResetAfter)
	return out
}

// units are those that Envoy can name, the longest first.
var units = []struct {
	length time.Duration
	unit   ratelimitv3.RateLimitResponse_RateLimit_Unit
}{
	{24 * time.Hour, ratelimitv3.RateLimitResponse_RateLimit_DAY},
	{time.Hour, ratelimitv3.RateLimitResponse_RateLimit_HOUR},
	{time.Minute, ratelimitv3.RateLimitResponse_RateLimit_MINUTE},
	{time.Second, ratelimitv3.RateLimitResponse_RateLimit_SECOND},
}

// limitOf has no unit where the window is none of Envoy's.
func limitOf(d *answer.Decided, at int) *ratelimitv3.RateLimitResponse_RateLimit {
	l := d.Limit.Limits[at]
	out := &ratelimitv3.RateLimitResponse_RateLimit{
		Name: d.Items[at], RequestsPerUnit: uint32(l.Requests), //nolint:gosec // below 2^31
	}
	for _, u := range units {
		if l.Window == u.length {
			out.Unit = u.unit
		}
	}
	return out
}
