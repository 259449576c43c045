package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWrongUsageIsOneClearLineAndExitCode2(t *testing.T) {
	t.Parallel()
	policy, upstream := policyFile(t), "http://127.0.0.1:9"
	standalone := []string{"--policy", policy, "--upstream", upstream}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":                  {nil, "--policy is missing"},
		"unknown flag":             {append(standalone, "--polisy", "x"), "unknown flag: --polisy"},
		"argument":                 {append(standalone, "policy.yaml"), `unexpected argument "policy.yaml"`},
		"no upstream":              {[]string{"--policy", policy}, `--upstream ""`},
		"upstream without scheme":  {[]string{"--policy", policy, "--upstream", "127.0.0.1:9000"}, `--upstream "127.0.0.1:9000" is not a URL`},
		"upstream with a path":     {[]string{"--policy", policy, "--upstream", "http://127.0.0.1:9000/app"}, "--upstream"},
		"upstream's port":          {[]string{"--policy", policy, "--upstream", "http://127.0.0.1:99999"}, `--upstream "http://127.0.0.1:99999" is not a URL`},
		"listen without port":      {append(standalone, "--listen", "8080"), `--listen "8080" is not host:port`},
		"listen empty":             {append(standalone, "--listen", ""), "--listen is empty"},
		"listen port out of range": {append(standalone, "--listen", ":80800"), "--listen"},
		"store":                    {append(standalone, "--store", "etcd://x"), `--store "etcd://x"`},
		"store URL":                {append(standalone, "--store", "redis://:secret@[::1"), "--store is not a URL such as redis://"},
		"store database":           {append(standalone, "--store", "redis://x/3"), "database 3 is not taken"},
		"store timeout":            {append(standalone, "--store-timeout", "0s"), "--store-timeout 0s"},
		"no duration":              {append(standalone, "--store-timeout", "fast"), "--store-timeout"},
		"replicas":                 {append(standalone, "--replicas", "0"), "--replicas 0"},
		"log level":                {append(standalone, "--log-level", "loud"), `--log-level "loud"`},
		"drain":                    {append(standalone, "--drain-timeout", "-1s"), "--drain-timeout -1s is negative"},
		"cluster with a file":      {[]string{"--push-address", "x:1", "--policy", policy}, "--policy has no meaning with --push-address"},
		"cluster without a token":  {[]string{"--push-address", "x:1"}, "--push-address needs"},
		"cluster's interception":   {cluster("--interception", "magic"), `--interception "magic"`},
		"cluster's named ports":    {cluster("--interception", "named-port", "--named-ports", "15101=http"), `--named-ports "15101=http"`},
		"cluster's missing rules":  {cluster("--on-missing-rules", "maybe"), `--on-missing-rules "maybe"`},
		"cluster's address":        {[]string{"--push-address", "x", "--push-ca-file", "a", "--push-token-file", "b"}, `--push-address "x" is not host:port`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, said := fails(t, c.args...)
			if code != 2 || !strings.Contains(said, c.want) || !isOneLine(said) || strings.Contains(said, "secret") {
				t.Errorf("exit code %d, %q; want 2 and one line with %q", code, said, c.want)
			}
		})
	}
}

func cluster(args ...string) []string {
	return append([]string{"--push-address", "x:1", "--push-ca-file", "a", "--push-token-file", "b"}, args...)
}

func isOneLine(s string) bool {
	return strings.HasPrefix(s, "sluice-sidecar: ") && strings.Count(s, "\n") == 1 && strings.HasSuffix(s, "\n")
}

func TestWhatKeepsItFromStartingIsOneClearLineAndExitCode1(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	shortKey := filepath.Join(t.TempDir(), "key")
	write(t, shortKey, "short")
	free := []string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for name, c := range map[string]struct {
		policy string
		args   []string
		want   []string
	}{
		"port in use":         {policyFile(t), []string{"--listen", taken.Addr().String(), "--admin", ""}, []string{"listen on " + taken.Addr().String(), "address already in use"}},
		"admin port in use":   {policyFile(t), []string{"--listen", "127.0.0.1:0", "--admin", taken.Addr().String()}, []string{"listen on " + taken.Addr().String(), "address already in use"}},
		"missing file":        {filepath.Join(t.TempDir(), "none.yaml"), free, []string{"none.yaml", "no such file"}},
		"missing folder":      {"/none/policy.yaml", free, []string{"/none", "no such file"}},
		"malformed YAML":      {policyFile(t, "rules:", "rules: ]"), free, []string{"policy.yaml, document 1", "yaml: line"}},
		"unknown field":       {policyFile(t, "onStoreFailure", "onStorFailure"), free, []string{"policy.yaml, document 1", "onStorFailure"}},
		"no policy":           {policyFile(t, "RateLimitPolicy", "RateLimitStore"), free, []string{"no RateLimitPolicy"}},
		"another kind":        {policyFile(t, "RateLimitPolicy", "Pod"), free, []string{"Pod is not taken"}},
		"another value":       {policyFile(t, "SlidingWindowLog", "Guess"), free, []string{"spec.rules[0].algorithm", "Guess", "SlidingWindowLog"}},
		"CEL error":           {policyFile(t, "request.path", "request.pat"), free, []string{"spec.rules[0].when", "1:1", "request has no such field"}},
		"CEL syntax error":    {policyFile(t, `"/free"`, `)`), free, []string{"spec.rules[0].when", "1:17"}},
		"hash key missing":    {policyFile(t), append(free, "--hash-key-file", "/none/key"), []string{"hash key", "/none/key"}},
		"hash key short":      {policyFile(t), append(free, "--hash-key-file", shortKey), []string{"hash key", "fewer than 16 bytes"}},
		"host does not exist": {policyFile(t), []string{"--listen", "256.1.1.1:0", "--admin", ""}, []string{"listen on 256.1.1.1:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, said := fails(t, append([]string{"--policy", c.policy, "--upstream", "http://127.0.0.1:9"}, c.args...)...)
			for _, want := range c.want {
				if code != 1 || !strings.Contains(said, want) || !isOneLine(said) {
					t.Errorf("exit code %d, %q; want 1 and one line with %q", code, said, want)
				}
			}
		})
	}
}

func TestHelpExplainsEveryFlag(t *testing.T) {
	t.Parallel()
	out, err := sidecarCommand(t, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--policy FILE", "--listen ADDR", "--upstream URL", "--store", "--admin ADDR", "--decisions ADDR", "--store-timeout",
		"--replicas", "--hash-key-file FILE", "Exit codes: 0 stopped by a signal, 1 cannot start, 2 wrong usage",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("--help lacks %q:\n%s", want, out)
		}
	}
}

func TestSevenRequestsAgainstFive(t *testing.T) {
	t.Parallel()
	s := start(t, policyFile(t), application(t))
	if ready := get(t, s.admin+"/readyz"); ready.StatusCode != http.StatusOK {
		t.Errorf("readyz: %s", ready.Status)
	}
	var statuses []int
	for n := range 7 {
		r := get(t, s.listen+"/")
		statuses = append(statuses, r.StatusCode)
		if want := strconv.Itoa(max(0, 4-n)); r.Header.Get("RateLimit-Remaining") != want {
			t.Errorf("request %d: RateLimit-Remaining %q, want %s", n+1, r.Header.Get("RateLimit-Remaining"), want)
		}
		if r.StatusCode != http.StatusTooManyRequests {
			continue
		}
		problem := r.json(t)
		if problem["limit"] != 5.0 || problem["currentCount"] != 5.0 || problem["policy"] != "shop/shop" || problem["rule"] != "api" {
			t.Errorf("request %d: %s", n+1, r.body)
		}
	}
	if want := []int{200, 200, 200, 200, 200, 429, 429}; !slices.Equal(statuses, want) {
		t.Errorf("statuses %v, want %v", statuses, want)
	}
	if free := get(t, s.listen+"/free"); free.StatusCode != http.StatusOK {
		t.Errorf("a request that no rule applies to: %s", free.Status)
	}
	metrics := get(t, s.admin+"/metrics").body
	for _, want := range []string{
		`sluice_requests_total{decision="allowed",policy="shop/shop",rule="api",tier="anonymous"} 5`,
		`sluice_requests_total{decision="rejected",policy="shop/shop",rule="api",tier="anonymous"} 2`,
		`sluice_rules_generation{policy="shop/shop"} 1`, "sluice_local_keys 1",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if err := s.stop(); err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
}

func TestAnUnreachableUpstreamIs502(t *testing.T) {
	t.Parallel()
	s := start(t, policyFile(t), "http://127.0.0.1:1")
	r := get(t, s.listen+"/")
	if r.StatusCode != http.StatusBadGateway || r.Header.Get("Content-Type") != "application/problem+json" ||
		r.json(t)["status"] != 502.0 || r.Header.Get("RateLimit-Remaining") != "4" {
		t.Errorf("%s %v %s", r.Status, r.Header, r.body)
	}
}

func TestAnUnreachableRedisAtStartIsNotFatal(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string][]int{
		"Local": {200, 200, 200, 200, 200, 429, 429}, "Allow": {200, 200, 200, 200, 200, 200, 200}, "Deny": {503, 503, 503, 503, 503, 503, 503},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := start(t, policyFile(t, "onStoreFailure: Local", "onStoreFailure: "+policy), application(t), "--store", "redis://:secret@127.0.0.1:1")
			s.await("store fails, onStoreFailure decides until it answers")
			if ready := get(t, s.admin+"/readyz"); ready.StatusCode != http.StatusOK {
				t.Errorf("readyz: %s", ready.Status)
			}
			statuses := make([]int, 0, len(want))
			for range want {
				statuses = append(statuses, get(t, s.listen+"/").StatusCode)
			}
			if !slices.Equal(statuses, want) {
				t.Errorf("statuses %v, want %v", statuses, want)
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			warnings := 0
			for _, line := range s.log {
				if line["level"] != "INFO" {
					warnings++
				}
				if strings.Contains(fmt.Sprint(line), "secret") {
					t.Errorf("the log tells the password: %v", line)
				}
			}
			if warnings != 1 {
				t.Errorf("%d warnings, want one: %v", warnings, s.log)
			}
		})
	}
}

func TestAnEditIsInForceWithoutARestart(t *testing.T) {
	t.Parallel()
	file := policyFile(t)
	s := start(t, file, application(t))
	limit := func() string { return get(t, s.listen+"/").Header.Get("RateLimit-Limit") }
	if got := limit(); got != "5" {
		t.Fatalf("limit %s, want 5", got)
	}
	write(t, file, strings.Replace(fivePerTenSeconds, "requests: 5", "requests: lots", 1))
	bad := s.await("the policy files can't be taken, the last good rules stay")
	if text := fmt.Sprint(bad["error"]); !strings.Contains(text, "requests") || strings.Contains(text, "\n") {
		t.Errorf("the log says %q of the bad edit", text)
	}
	if got := limit(); got != "5" {
		t.Errorf("limit %s after a bad edit, want still 5", got)
	}
	// Editors write a new file and put it in the old one's place.
	write(t, file+".new", strings.Replace(fivePerTenSeconds, "requests: 5", "requests: 9", 1))
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return get(t, s.listen+"/").Header.Get("RateLimit-Limit") == "9" })
	if r := get(t, s.listen+"/"); r.Header.Get("RateLimit-Remaining") >= "6" {
		t.Errorf("%s remain of 9 after the edit: what was used before is forgotten", r.Header.Get("RateLimit-Remaining"))
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("did not hold within %s", patience)
		}
	}
}

func TestRequestsUnderWayEndBeforeTheProcessDoes(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-leave
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(slow.Close)
	s := start(t, policyFile(t), slow.URL)
	status := make(chan int, 1)
	go func() {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.listen, http.NoBody)
		if err != nil {
			t.Error(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	<-arrived
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	s.await("stopping")
	close(leave)
	if got := <-status; got != http.StatusAccepted {
		t.Errorf("the request under way got %d, want 202", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
}
