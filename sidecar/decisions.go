package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/sidecar/answer"
	"github.com/sluice-dev/sluice/sidecar/identity"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

const maxCheckBody = 64 << 10

// checkRequest is the body of POST /v1/check.
type checkRequest struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Host    string            `json:"host"`
	Headers map[string]string `json:"headers"`
	Source  string            `json:"source"`
	Cost    *int64            `json:"cost"`
}

// checkResponse is the answer; times are milliseconds, rounded up.
type checkResponse struct {
	Allowed      bool              `json:"allowed"`
	Limit        int64             `json:"limit"`
	Remaining    int64             `json:"remaining"`
	ResetAfterMs int64             `json:"resetAfterMs"`
	RetryAfterMs int64             `json:"retryAfterMs"`
	CurrentCount int64             `json:"currentCount"`
	DelayMs      int64             `json:"delayMs"`
	Policy       string            `json:"policy"`
	Rule         string            `json:"rule"`
	Tier         string            `json:"tier"`
	Headers      map[string]string `json:"headers"`
}

var errCheck = errors.New("invalid request to /v1/check")

// Decisions serves the decision API: POST /v1/check, and GET /v1/auth for nginx.
func (g *Guard) Decisions() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/check", g.check)
	mux.HandleFunc("GET /v1/auth", g.auth)
	return mux
}

func (g *Guard) check(w http.ResponseWriter, r *http.Request) {
	asked, multiply, err := readCheck(r.Context(), http.MaxBytesReader(w, r.Body, maxCheckBody))
	if err != nil {
		answer.BadRequest(err.Error()).Write(w, r)
		return
	}
	verdict, err := g.Decide(asked, rules.Question{Multiply: multiply})
	if err != nil {
		return // the caller left
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(responseOf(verdict)); err != nil {
		return // the caller left
	}
}

func readCheck(ctx context.Context, body io.Reader) (*http.Request, int64, error) {
	var in checkRequest
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errCheck, err)
	}
	if d.More() {
		return nil, 0, fmt.Errorf("%w: something follows the object", errCheck)
	}
	multiply := int64(1)
	if in.Cost != nil {
		multiply = *in.Cost
	}
	if multiply < 0 || multiply > limiter.MaxCost {
		return nil, 0, fmt.Errorf("%w: cost is not 0 to %d", errCheck, limiter.MaxCost)
	}
	asked, err := RequestOf(ctx, in.Method, in.Path, in.Host, in.Source)
	if err != nil {
		return nil, 0, err
	}
	for name, value := range in.Headers {
		asked.Header.Set(name, value)
	}
	return asked, multiply, nil
}

// RequestOf makes the request that is asked about. No source is an unknown one; a wrong source is refused, or all who are
// called wrongly would be one caller.
func RequestOf(ctx context.Context, method, path, host, source string) (*http.Request, error) {
	if source != "" && !identity.PeerAddress(source).IsValid() {
		return nil, fmt.Errorf("%w: source %q is no address", errCheck, source)
	}
	if method == "" {
		method = http.MethodGet
	}
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCheck, err)
	}
	if u.Opaque != "" {
		return nil, fmt.Errorf("%w: %q is not a path", errCheck, path)
	}
	rules.EscapePath(u)
	asked := &http.Request{Method: method, URL: u, Host: host, Header: http.Header{}, RemoteAddr: source}
	return asked.WithContext(ctx), nil
}

// auth answers nginx's auth_request, which takes 2xx as yes and 401 and 403 as no. Where the request must wait, so does nginx.
func (g *Guard) auth(w http.ResponseWriter, r *http.Request) {
	header := r.Header.Clone()
	peer := takePeer(header, r.RemoteAddr)
	asked, err := RequestOf(r.Context(), header.Get("X-Original-Method"), header.Get("X-Original-Uri"), header.Get("X-Original-Host"), peer)
	if err != nil {
		answer.BadRequest(err.Error()).Write(w, r)
		return
	}
	asked.Header = header
	verdict, err := g.Decide(asked, rules.Question{Multiply: 1})
	if err != nil {
		return // the caller left
	}
	verdict.Fields.Set(w.Header())
	if verdict.Refusal == nil {
		if g.Wait(r.Context(), verdict) == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	if retry := verdict.Refusal.Problem.RetryAfter; retry != nil {
		w.Header().Set("Retry-After", strconv.FormatInt(*retry, 10))
	}
	if verdict.Refusal.Problem.Status == http.StatusUnauthorized {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.WriteHeader(http.StatusForbidden)
}

// takePeer takes the last address off X-Forwarded-For: nginx, which asks, has put its own peer there. What is left is judged
// as if that peer had called here.
func takePeer(h http.Header, otherwise string) string {
	lines := h["X-Forwarded-For"]
	if len(lines) == 0 {
		return otherwise
	}
	last := lines[len(lines)-1]
	comma := strings.LastIndexByte(last, ',')
	if comma >= 0 {
		lines[len(lines)-1] = last[:comma]
	} else if lines = lines[:len(lines)-1]; len(lines) == 0 {
		delete(h, "X-Forwarded-For")
	} else {
		h["X-Forwarded-For"] = lines
	}
	return strings.TrimSpace(last[comma+1:])
}

// responseOf speaks of the limit that refuses, or of the one with the least left.
func responseOf(v *Verdict) checkResponse {
	out := checkResponse{Allowed: v.Refusal == nil, Headers: map[string]string{}}
	maps.Copy(out.Headers, v.Fields)
	if v.Refusal != nil {
		p := &v.Refusal.Problem
		out.Policy, out.Rule, out.Tier = p.Policy, p.Rule, p.Tier
		if p.RetryAfter != nil {
			out.Headers["Retry-After"] = strconv.FormatInt(*p.RetryAfter, 10)
		}
	}
	for i := range v.Decided {
		if d := &v.Decided[i]; !d.Limit.Shadow {
			out.DelayMs = max(out.DelayMs, millis(d.Delay))
		}
	}
	if d, at := v.Speaker(); d != nil {
		s := d.Limits[at]
		out.Limit, out.Remaining, out.CurrentCount = d.Limit.Limits[at].Requests, s.Remaining, s.Current
		out.ResetAfterMs, out.RetryAfterMs = millis(s.ResetAfter), millis(s.RetryAfter)
		out.Policy, out.Rule, out.Tier = d.Rule.Policy.Name, d.Rule.Name, d.Name
	}
	return out
}

// Speaker is the limit that refuses longest, or the one with the least left, and its number in its rule; nil where nothing
// was counted.
func (v *Verdict) Speaker() (speaker *answer.Decided, at int) {
	for i := range v.Decided {
		d := &v.Decided[i]
		if !d.Limit.Shadow && len(d.Limits) > 0 && (speaker == nil || speaksBefore(d, speaker)) {
			speaker = d
		}
	}
	if speaker == nil {
		return nil, 0
	}
	for i, s := range speaker.Limits {
		first := speaker.Limits[at]
		if s.RetryAfter > first.RetryAfter || s.RetryAfter == first.RetryAfter && s.Remaining < first.Remaining {
			at = i
		}
	}
	return speaker, at
}

func speaksBefore(a, b *answer.Decided) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	return a.RetryAfter > b.RetryAfter || a.RetryAfter == b.RetryAfter && a.Limits[0].Remaining < b.Limits[0].Remaining
}

// millis rounds up; a wait that never ends is -1.
func millis(d time.Duration) int64 {
	if d == limiter.Never {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
