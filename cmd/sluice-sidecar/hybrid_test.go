package main

import (
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/sluice-dev/sluice/internal/testredis"
)

// metric returns a value that /metrics shows.
func (s *running) metric(name string) int {
	s.t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindStringSubmatch(get(s.t, s.admin+"/metrics").body)
	if found == nil {
		s.t.Fatalf("metrics lack %s", name)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestTwoSidecarsInModeHybridShareALimitAndOneGivesBackWhenItStops(t *testing.T) {
	t.Parallel()
	const limit = 400
	policy := policyFile(t, "requests: 5", "requests: 400", "window: 10s", "window: 1h", "  onStoreFailure", "  mode: Hybrid\n  onStoreFailure")
	store := "redis://" + testredis.Start(t).Addr
	upstream := application(t)
	first := start(t, policy, upstream, "--store", store)
	second := start(t, policy, upstream, "--store", store)
	passed := 0
	ask := func(s *running) bool {
		ok := get(t, s.listen+"/").StatusCode == http.StatusOK
		if ok {
			passed++
		}
		return ok
	}
	for range limit / 4 {
		if !ask(first) || !ask(second) {
			t.Fatalf("refused after %d of %d requests", passed, limit)
		}
	}
	if first.metric("sluice_leased_tokens") == 0 {
		t.Errorf("nothing is leased after %d requests in a row", limit/4)
	}
	if n := first.metric("sluice_store_round_trips_total"); n > limit/8 {
		t.Errorf("%d round trips for %d requests", n, limit/4)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { ask(second); return passed >= limit })
	for range 20 {
		if ask(second) {
			t.Errorf("%d requests passed a limit of %d", passed, limit)
		}
	}
}
