package answer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/internal/expression"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

// Problem types of the IETF draft, RFC 9457.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	blank        = "about:blank"
	problemJSON  = "application/problem+json"
)

// Problem is a problem+json body (RFC 9457).
type Problem struct {
	Type         string   `json:"type"`
	Title        string   `json:"title"`
	Status       int      `json:"status"`
	Detail       string   `json:"detail,omitempty"`
	Violated     []string `json:"violated-policies,omitempty"`
	Policy       string   `json:"policy,omitempty"`
	Rule         string   `json:"rule,omitempty"`
	Tier         string   `json:"tier,omitempty"`
	Limit        *int64   `json:"limit,omitempty"`
	CurrentCount *int64   `json:"currentCount,omitempty"`
	RetryAfter   *int64   `json:"retryAfter,omitempty"`
}

// Refusal is an answer that does not come from the upstream.
type Refusal struct {
	Problem Problem
	// Fields are sent with it.
	Fields Fields
	// ContentType and Body replace the problem where they are set.
	ContentType string
	Body        []byte
	// FailedBody is the rule whose body expression could not be evaluated.
	FailedBody *rules.Rule
}

// Rejected is the 429 for a request that its limits refuse. The refusal that lasts longest speaks.
func Rejected(list []Decided, fields Fields) *Refusal {
	var worst *Decided
	var violated []string
	for i := range list {
		d := &list[i]
		if d.Allowed || d.Limit.Shadow || d.Source == limiter.FailedDeny {
			continue
		}
		for j, s := range d.Limits {
			if !s.Allowed {
				violated = append(violated, d.Items[j])
			}
		}
		if worst == nil || d.RetryAfter > worst.RetryAfter {
			worst = d
		}
	}
	refusal := &Refusal{Fields: fields, Problem: problemOf(worst)}
	refusal.Problem.Violated = violated
	refusal.custom(worst)
	return refusal
}

func problemOf(d *Decided) Problem {
	at := refusing(d)
	s := d.Limits[at]
	s.Limit = d.Limit.Limits[at].Requests
	p := Problem{
		Type: typeQuota, Title: "Request cannot be satisfied as assigned quota has been exceeded", Status: http.StatusTooManyRequests,
		Policy: d.Rule.Policy.Name, Rule: d.Rule.Name, Tier: d.Name, Limit: &s.Limit, CurrentCount: &s.Current,
	}
	if d.RetryAfter == limiter.Never {
		p.Detail = "The request can never be admitted: it costs more than the limit of " + strconv.FormatInt(s.Limit, 10)
		return p
	}
	p.Detail = describe(s, d.Limit.Limits[at].Window)
	wait := d.RetryAfter
	if d.Rule.Response.Jitter > 0 {
		wait += rand.N(d.Rule.Response.Jitter) //nolint:gosec // spreads callers, guards nothing
	}
	p.RetryAfter = new(max(1, seconds(wait)))
	return p
}

// refusing is the limit that refuses longest.
func refusing(d *Decided) int {
	at := 0
	for i, s := range d.Limits {
		if !s.Allowed && (d.Limits[at].Allowed || s.RetryAfter > d.Limits[at].RetryAfter) {
			at = i
		}
	}
	return at
}

func (r *Refusal) custom(d *Decided) {
	response := d.Rule.Response
	if response.Body == nil {
		return
	}
	at := refusing(d)
	vars := *d.Vars
	vars.Decision = expression.Decision{
		Limit: d.Limit.Limits[at].Requests, Remaining: d.Limits[at].Remaining, CurrentCount: d.Limits[at].Current,
		Policy: d.Rule.Policy.Name, Rule: d.Rule.Name, Tier: d.Name,
	}
	if r.Problem.RetryAfter != nil {
		vars.Decision.RetryAfter = *r.Problem.RetryAfter
	}
	body, err := response.Body.Text(&vars)
	if err != nil {
		r.FailedBody = d.Rule
		return
	}
	r.ContentType, r.Body = response.ContentType, body
}

// WithoutKey is the 429 for a request whose rule rejects requests without a key.
func WithoutKey(t *rules.Tier) *Refusal {
	return &Refusal{Problem: Problem{
		Type: typeQuota, Title: "Request cannot be counted", Status: http.StatusTooManyRequests,
		Detail: "The request can never be admitted: it lacks what the rule counts by",
		Policy: t.Rule.Policy.Name, Rule: t.Rule.Name, Tier: t.Name, Violated: t.Items[:1],
	}}
}

// StoreFailed is the 503 while counters can't be asked and the policy denies.
func StoreFailed(list []Decided, fields Fields) *Refusal {
	p := Problem{
		Type: typeCapacity, Title: "Request cannot be satisfied due to temporary reduced capacity", Status: http.StatusServiceUnavailable,
		Detail: "The limits can't be checked at the moment", RetryAfter: new(int64(1)),
	}
	for _, d := range list {
		if d.Source == limiter.FailedDeny && !d.Limit.Shadow {
			p.Policy, p.Rule, p.Tier = d.Rule.Policy.Name, d.Rule.Name, d.Name
			p.Violated = append(p.Violated, d.Items...)
		}
	}
	return &Refusal{Problem: p, Fields: fields}
}

// Unauthorized is the 401 for a credential that is not valid, where the policy rejects it.
func Unauthorized(p *rules.Policy) *Refusal {
	return &Refusal{Problem: Problem{
		Type: blank, Title: http.StatusText(http.StatusUnauthorized), Status: http.StatusUnauthorized,
		Detail: "The credential that was presented is not valid", Policy: p.Name,
	}}
}

// NoRules is the 503 while no rules have arrived and the workload denies.
func NoRules() *Refusal {
	return &Refusal{Problem: Problem{
		Type: typeCapacity, Title: http.StatusText(http.StatusServiceUnavailable), Status: http.StatusServiceUnavailable,
		Detail: "No rules have arrived yet", RetryAfter: new(int64(1)),
	}}
}

// BadGateway is the 502 for an upstream that can't be reached.
func BadGateway(fields Fields) *Refusal {
	return &Refusal{Fields: fields, Problem: Problem{
		Type: blank, Title: http.StatusText(http.StatusBadGateway), Status: http.StatusBadGateway,
		Detail: "The application behind the limiter can't be reached",
	}}
}

// BadRequest is the 400 for a request that can't be understood.
func BadRequest(detail string) *Refusal {
	return &Refusal{Problem: Problem{
		Type: blank, Title: http.StatusText(http.StatusBadRequest), Status: http.StatusBadRequest, Detail: detail,
	}}
}

// TooManyHeaders is the 431 for a flood of header lines.
func TooManyHeaders(lines, most int) *Refusal {
	return &Refusal{Problem: Problem{
		Type: blank, Title: http.StatusText(http.StatusRequestHeaderFieldsTooLarge), Status: http.StatusRequestHeaderFieldsTooLarge,
		Detail: fmt.Sprintf("The request has %d header lines, and %d are taken", lines, most),
	}}
}

// NotTaken is the answer to a method that is not proxied.
func NotTaken() *Refusal {
	return &Refusal{Problem: Problem{
		Type: blank, Title: http.StatusText(http.StatusMethodNotAllowed), Status: http.StatusMethodNotAllowed,
		Detail: "CONNECT is not taken",
	}}
}

// Write sends the refusal: to gRPC callers as a trailers-only response, to others as HTTP.
func (r *Refusal) Write(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	r.Fields.Set(h)
	if r.Problem.RetryAfter != nil {
		h.Set("Retry-After", strconv.FormatInt(*r.Problem.RetryAfter, 10))
	}
	if r.Problem.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if IsGRPC(req) {
		r.writeGRPC(w)
		return
	}
	kind, body := r.ContentType, r.Body
	if body == nil {
		kind = problemJSON
		// A struct of strings and numbers always encodes.
		body, _ = json.Marshal(r.Problem) //nolint:errchkjson // see above
		body = append(body, '\n')
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(r.Problem.Status)
	if req.Method != http.MethodHead {
		_, _ = w.Write(body) // a caller that left needs no answer
	}
}

// IsGRPC tells whether a request is a gRPC call.
func IsGRPC(r *http.Request) bool {
	rest, found := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return found && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

var grpcCodes = map[int]codes.Code{
	http.StatusTooManyRequests:    codes.ResourceExhausted,
	http.StatusUnauthorized:       codes.Unauthenticated,
	http.StatusServiceUnavailable: codes.Unavailable,
	http.StatusBadGateway:         codes.Unavailable,
}

// writeGRPC sends status and details as headers that end the stream: the trailers-only form of gRPC over HTTP/2.
func (r *Refusal) writeGRPC(w http.ResponseWriter) {
	code, known := grpcCodes[r.Problem.Status]
	if !known {
		code = codes.Unimplemented
	}
	s := &status.Status{Code: int32(code), Message: r.Problem.Title}
	if r.Problem.RetryAfter != nil {
		info := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(*r.Problem.RetryAfter) * time.Second)}
		if detail, err := anypb.New(info); err == nil {
			s.Details = append(s.Details, detail)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(code)))
	h.Set("Grpc-Message", r.Problem.Title)
	if details, err := proto.Marshal(s); err == nil {
		h.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
	w.WriteHeader(http.StatusOK)
}
