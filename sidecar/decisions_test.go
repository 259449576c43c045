package sidecar_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

type answered struct {
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

func check(t *testing.T, h http.Handler, body string) (int, answered) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", strings.NewReader(body)))
	var out answered
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatalf("%s is answered with %q: %v", body, w.Body, err)
	}
	return w.Code, out
}

func TestCheckAnswersLikeTheProxyWould(t *testing.T) {
	t.Parallel()
	h := newGuard(t, updateOf(t, nil, policy(rule("api", 3, under("/api"))))).Decisions()
	for n, want := range []answered{
		{Allowed: true, Limit: 3, Remaining: 2, CurrentCount: 1},
		{Allowed: true, Limit: 3, Remaining: 0, CurrentCount: 3},
		{Allowed: false, Limit: 3, Remaining: 0, CurrentCount: 3},
	} {
		question := []string{
			`{"method": "GET", "path": "/api/x?y=1", "host": "shop.example", "source": "198.51.100.7"}`,
			`{"path": "//api/../api", "source": "198.51.100.7:4711", "cost": 2, "headers": {"X-A": "b"}}`,
			`{"path": "/api", "source": "198.51.100.7"}`,
		}[n]
		status, got := check(t, h, question)
		if status != http.StatusOK || got.Allowed != want.Allowed || got.Limit != want.Limit || got.Remaining != want.Remaining ||
			got.CurrentCount != want.CurrentCount || got.Policy != "ns/shop" || got.Rule != "api" || got.Tier != "all" {
			t.Errorf("%s: %d %+v, want %+v", question, status, got, want)
		}
		if wait := got.RetryAfterMs; got.Allowed != (wait == 0) || wait > 60_000 || got.ResetAfterMs > 60_000 {
			t.Errorf("%s: retry after %d ms, reset after %d ms", question, wait, got.ResetAfterMs)
		}
		if _, told := got.Headers["Retry-After"]; got.Headers["RateLimit-Limit"] != "3" || told == got.Allowed {
			t.Errorf("%s: headers %v", question, got.Headers)
		}
	}
	if _, got := check(t, h, `{"path": "/other"}`); !got.Allowed || got.Policy != "" || got.Headers == nil {
		t.Errorf("where no rule applies: %+v", got)
	}
	if _, got := check(t, h, `{"path": "/api", "source": "203.0.113.9", "cost": 4}`); got.Allowed || got.RetryAfterMs != -1 || got.Headers["Retry-After"] != "" {
		t.Errorf("what can never be admitted: %+v", got)
	}
}

func TestCheckRefusesWhatItCantRead(t *testing.T) {
	t.Parallel()
	h := newGuard(t, updateOf(t, nil, policy(rule("api", 3)))).Decisions()
	for _, body := range []string{
		``, `[]`, `{`, `{"paht": "/"}`, `{"path": "api"}`, `{"path": "shop:api"}`, `{"source": "somewhere"}`, `{"cost": -1}`, `{"cost": 2147483648}`, `{"cost": 1.5}`,
		`{} {}`, `{"path": "` + strings.Repeat("a", 70_000) + `"}`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", strings.NewReader(body)))
		if w.Code != http.StatusBadRequest || w.Header().Get("Content-Type") != "application/problem+json" || strings.Count(w.Body.String(), "\n") != 1 {
			t.Errorf("%.40s: %d %s", body, w.Code, w.Body)
		}
	}
}

func TestAuthIsWhatNginxAsks(t *testing.T) {
	t.Parallel()
	h := newGuard(t, updateOf(t, nil, policy(rule("api", 1, under("/api")), func(p *pushv1.Policy) {
		p.Identity.TrustedProxies = []string{"10.0.0.0/8"}
	}))).Decisions()
	ask := func(forwardedFor string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/auth", http.NoBody)
		r.RemoteAddr = "127.0.0.1:4711"
		for name, value := range map[string]string{
			"X-Original-Method": "POST", "X-Original-URI": "/x/../api?a=b", "X-Original-Host": "shop.example", "X-Forwarded-For": forwardedFor,
		} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := ask("1.1.1.1, 198.51.100.7"); w.Code != http.StatusNoContent || spelled(w.Header(), "RateLimit-Remaining") != "0" {
		t.Errorf("the first: %d %v", w.Code, w.Header())
	}
	w := ask("2.2.2.2, 198.51.100.7")
	if w.Code != http.StatusForbidden || w.Header().Get("Retry-After") == "" || spelled(w.Header(), "RateLimit-Limit") != "1" {
		t.Errorf("the second of the same peer: %d %v", w.Code, w.Header())
	}
	if w := ask("203.0.113.9"); w.Code != http.StatusNoContent {
		t.Errorf("the first of another: %d", w.Code)
	}
	if w := ask("198.51.100.7, 10.1.1.1"); w.Code != http.StatusForbidden {
		t.Errorf("the same through a proxy: %d", w.Code)
	}
	if w := ask("someone"); w.Code != http.StatusBadRequest {
		t.Errorf("a peer that is no address: %d", w.Code)
	}
}

func FuzzCheck(f *testing.F) {
	for _, seed := range []string{`{}`, `{"path": "/api", "cost": 2}`, `{"headers": {"": "\u0000"}}`, `{"path": "/%zz"}`, `{"source": "::1", "method": "\n"}`, `[`} {
		f.Add(seed)
	}
	h := newGuard(f, updateOf(f, nil, policy(rule("api", 1_000_000, under("/api"))))).Decisions()
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", strings.NewReader(body)))
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
