// Command shop is the application of the demo: it says which pod answered.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", ":8080", "`ADDR` to listen on")
	flag.Parse()
	if err := serve(*listen); err != nil {
		slog.Error("shop", "error", err)
		os.Exit(1)
	}
}

func serve(listen string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: listen, Handler: handler(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.ListenAndServe() }()
	select {
	case err := <-done:
		return fmt.Errorf("listen: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

func handler() http.Handler {
	pod, err := os.Hostname()
	if err != nil {
		pod = "unknown"
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]string{"pod": pod, "path": r.URL.Path}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			slog.Debug("the caller left", "error", err)
		}
	})
	return mux
}
