package sidecar

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Admin serves /metrics, /healthz and /readyz; ready tells whether requests may come.
func (g *Guard) Admin(ready func() bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.metrics.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "no rules yet", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	return mux
}

// Debug serves /debug/rules: what is in force, without secrets.
func (g *Guard) Debug() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/rules", func(w http.ResponseWriter, _ *http.Request) {
		var out struct {
			Version  string           `json:"version"`
			Policies []*pushv1.Policy `json:"policies"`
		}
		if set := g.Rules(); set != nil {
			out.Version = set.Version
			for _, p := range set.Policies {
				out.Policies = append(out.Policies, p.Source)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(out); err != nil {
			return // the reader left
		}
	})
	return mux
}
