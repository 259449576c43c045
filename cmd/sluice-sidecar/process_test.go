package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runAsSidecar makes the test binary the sidecar itself.
const runAsSidecar = "SLUICE_TEST_RUN_AS_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(runAsSidecar) != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

const patience = 20 * time.Second

func sidecarCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), runAsSidecar+"=1")
	return cmd
}

// fails runs the sidecar to its end and returns its exit code and what it said.
func fails(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	out, err := sidecarCommand(t, args...).CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("sluice-sidecar %q ended with %v, want an exit code: %s", args, err, out)
	}
	return exit.ExitCode(), string(out)
}

// running is a sluice-sidecar process.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan error
	mu    sync.Mutex
	log   []map[string]any
	more  chan struct{} // closed and replaced at each line
	// listen, admin and decisions are URLs.
	listen, admin, decisions string
}

// start runs the sidecar on free ports until it serves.
func start(t *testing.T, policy, upstream string, args ...string) *running {
	t.Helper()
	all := append([]string{
		"--policy", policy, "--upstream", upstream, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--decisions", "127.0.0.1:0",
	}, args...)
	s := &running{t: t, cmd: sidecarCommand(t, all...), ended: make(chan error, 1), more: make(chan struct{})}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.follow(stderr)
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill() // it may have ended by itself
		}
	})
	serving := s.await("serving")
	at, _ := serving["addresses"].(map[string]any)
	for name, url := range map[string]*string{"listen": &s.listen, "admin": &s.admin, "decisions": &s.decisions} {
		address, _ := at[name].(string)
		*url = "http://" + address
	}
	return s
}

func (s *running) follow(stderr io.Reader) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		line := map[string]any{}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			line["msg"] = "not JSON: " + lines.Text()
		}
		s.mu.Lock()
		s.log = append(s.log, line)
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
	s.ended <- s.cmd.Wait()
}

// said returns the lines with a message.
func (s *running) said(message string) (found []map[string]any, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.log {
		if line["msg"] == message {
			found = append(found, line)
		}
	}
	return found, s.more
}

// await waits for a line with a message and returns the first.
func (s *running) await(message string) map[string]any {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		found, more := s.said(message)
		if len(found) > 0 {
			return found[0]
		}
		select {
		case <-more:
		case err := <-s.ended:
			s.t.Fatalf("ended before it said %q: %v; it said %v", message, err, s.log)
		case <-deadline:
			s.t.Fatalf("did not say %q within %s: %v", message, patience, s.log)
		}
	}
}

// stop sends SIGTERM and returns how the process ended.
func (s *running) stop() error {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		return err
	case <-time.After(patience):
		s.t.Fatalf("did not end within %s of SIGTERM", patience)
		return nil
	}
}

type reply struct {
	*http.Response
	body string
}

func (r reply) json(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal([]byte(r.body), &out); err != nil {
		t.Fatalf("body %q: %v", r.body, err)
	}
	return out
}

func get(t *testing.T, url string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response, string(body)}
}

// application answers 200 to everything.
func application(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(server.Close)
	return server.URL
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// policyFile writes the sample of five requests per ten seconds, with replacements old, new, old, new….
func policyFile(t *testing.T, replacements ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, name, strings.NewReplacer(replacements...).Replace(fivePerTenSeconds))
	return name
}

const fivePerTenSeconds = `apiVersion: ratelimit.sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shop, namespace: shop}
spec:
  onStoreFailure: Local
  rules:
  - name: api
    algorithm: SlidingWindowLog
    when: 'request.path != "/free"'
    limits: [{requests: 5, window: 10s}]
`
