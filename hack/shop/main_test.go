package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

func TestAPageNamesThePodAndThePath(t *testing.T) {
	t.Parallel()
	answer := httptest.NewRecorder()
	handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/cart", http.NoBody))
	var page struct{ Pod, Path string }
	if err := json.Unmarshal(answer.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if answer.Code != http.StatusOK || page.Pod != host || page.Path != "/cart" {
		t.Errorf("%d %+v", answer.Code, page)
	}
}

func TestItIsHealthy(t *testing.T) {
	t.Parallel()
	answer := httptest.NewRecorder()
	handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", http.NoBody))
	if answer.Code != http.StatusOK {
		t.Error(answer.Code)
	}
}
