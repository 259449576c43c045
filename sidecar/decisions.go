package sidecar

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/sidecar/answer"
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
	asked, multiply, err := readCheck(http.MaxBytesReader(w, r.Body, maxCheckBody), r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	verdict, err := g.Decide(asked, multiply)
	if err != nil {
		return // the caller left
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(responseOf(verdict)); err != nil {
		return // the caller left
	}
}

func readCheck(body io.Reader, r *http.Request) (*http.Request, int64, error) {
	var in checkRequest
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, 0, errors.Join(errCheck, err)
	}
	multiply := int64(1)
	if in.Cost != nil {
		multiply = *in.Cost
	}
	if multiply < 0 || multiply > limiter.MaxCost {
		return nil, 0, errors.Join(errCheck, errors.New("cost must be 0 to 2147483647"))
	}
	asked, err := questionOf(r, in.Method, in.Path, in.Host, in.Source)
	if err != nil {
		return nil, 0, err
	}
	for name, value := range in.Headers {
		asked.Header.Set(name, value)
	}
	return asked, multiply, nil
}

// questionOf makes the request that is asked about.
func questionOf(r *http.Request, method, path, host, source string) (*http.Request, error) {
	if method == "" {
		method = http.MethodGet
	}
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, errors.Join(errCheck, err)
	}
	asked := &http.Request{Method: method, URL: u, Host: host, Header: http.Header{}, RemoteAddr: source}
	return asked.WithContext(r.Context()), nil
}

// auth answers nginx's auth_request, which takes 2xx as yes and 401 and 403 as no.
func (g *Guard) auth(w http.ResponseWriter, r *http.Request) {
	asked, err := questionOf(r, r.Header.Get("X-Original-Method"), r.Header.Get("X-Original-URI"),
		r.Header.Get("X-Original-Host"), r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asked.Header = r.Header.Clone()
	verdict, err := g.Decide(asked, 1)
	if err != nil {
		return // the caller left
	}
	verdict.Fields.Set(w.Header())
	if verdict.Refusal == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if retry := verdict.Refusal.Problem.RetryAfter; retry != nil {
		w.Header().Set("Retry-After", strconv.FormatInt(*retry, 10))
	}
	w.WriteHeader(http.StatusForbidden)
}

// responseOf speaks of the limit that refuses, or of the one with the least left.
func responseOf(v *Verdict) checkResponse {
	out := checkResponse{Allowed: v.Refusal == nil, Headers: v.Fields}
	var shown *answer.Decided
	for i := range v.Decided {
		d := &v.Decided[i]
		out.DelayMs = max(out.DelayMs, millis(d.Delay))
		if len(d.Limits) > 0 && (shown == nil || speaksBefore(d, shown)) {
			shown = d
		}
	}
	if shown == nil {
		return out
	}
	s := shown.Limits[0]
	for _, other := range shown.Limits {
		if other.RetryAfter > s.RetryAfter || other.RetryAfter == s.RetryAfter && other.Remaining < s.Remaining {
			s = other
		}
	}
	out.Limit, out.Remaining, out.CurrentCount = s.Limit, s.Remaining, s.Current
	out.ResetAfterMs, out.RetryAfterMs = millis(s.ResetAfter), millis(s.RetryAfter)
	out.Policy, out.Rule, out.Tier = shown.Rule.Policy.Name, shown.Rule.Name, shown.Name
	return out
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
