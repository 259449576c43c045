package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"

	"github.com/sluice-dev/sluice/internal/clock"
)

func TestTheSummaryCountsTheChecks(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := report{out: newLog(&out, clock.NewFake(time.Unix(0, 0)))}
	r.expect(true, "one", "seen")
	r.failed("two", errors.New("it broke"))
	r.summary()
	for _, want := range []string{"ok     one: seen\n", "FAILED two: it broke\n", "\ndemo: 1 checks passed, 1 failed\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestTheChecksAreWrittenAsJSON(t *testing.T) {
	t.Parallel()
	r := report{out: newLog(&strings.Builder{}, clock.NewFake(time.Unix(0, 0)))}
	r.expect(true, "one", "seen")
	file := filepath.Join(t.TempDir(), "demo.json")
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Passed, Failed int
		Checks         []check
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Passed != 1 || got.Failed != 0 || len(got.Checks) != 1 || got.Checks[0] != r.checks[0] {
		t.Errorf("got %s", text)
	}
}

// limited admits the first n calls, as a limiter would.
func limited(n int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit-Limit", "5")
		if n--; n >= 0 {
			_, _ = w.Write([]byte(`{"pod": "shop-1"}`))
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"limit": 5, "currentCount": 5}`))
	})
}

func TestTheTableSaysWhatEachCallerGot(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(limited(5))
	t.Cleanup(server.Close)
	got, err := burst(t.Context(), newClient(), server.URL, caller{tier: "anonymous", credential: "none"}, 7)
	if err != nil {
		t.Fatal(err)
	}
	if !got.inOrder(5) || got.inOrder(4) || got.inOrder(6) || got.statuses() != "5×200 2×429" {
		t.Errorf("got %s", got.statuses())
	}
	lines := strings.Split(table([]tally{got}), "\n")
	want := []string{"anonymous", "none", "7", "5", "2", "5", "7", "s", "1"}
	if fields := strings.Fields(lines[1]); strings.Join(fields, " ") != strings.Join(want, " ") {
		t.Errorf("row %q, want %q", fields, want)
	}
}

func TestAnAnswerThatIsNoJSONIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	t.Cleanup(server.Close)
	_, err := call(t.Context(), newClient(), server.URL, caller{})
	if _, syntax := errors.AsType[*json.SyntaxError](err); !syntax {
		t.Errorf("got %v", err)
	}
}

func TestTokensVerifyAgainstThePublishedKeySet(t *testing.T) {
	t.Parallel()
	i, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	token, err := i.token("ivy", "premium", time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	text, err := i.jwks()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := jwk.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := jws.Verify([]byte(token), jws.WithKeySet(keys))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(payload), `{"aud":"shop","exp":4600,"iat":1000,"iss":"https://id.example.com","plan":"premium","sub":"ivy"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheSamplePolicyTakesTheKeySetAndTheEdit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", samplePolicy))
	if err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{sampleJWKS, sampleOldLimit} {
		if _, err := replaceOnce(string(text), old, "x"); err != nil {
			t.Error(err)
		}
	}
	if _, err := replaceOnce(string(text), "tier", "x"); err == nil {
		t.Error("a text that stands twice was replaced")
	}
}

func TestReadingTheStatusAsAnOperatorDoes(t *testing.T) {
	t.Parallel()
	title := "NAMESPACE   NAME   READY   PROGRAMMED   SIDECARS   AGE\n"
	for shown, want := range map[string]bool{
		title + "shop        shop   True    True         3/3        1m\n": true,
		title + "shop        shop   True    True         2/3        1m\n": false,
		title + "shop        shop   False   True         3/3        1m\n": false,
		title + "shop        shop   True    False        3/3        1m\n": false,
		title + "shop        shop                                   1m\n": false,
		title: false,
		"":    false,
	} {
		if got := enforced(shown); got != want {
			t.Errorf("%v for\n%s", got, shown)
		}
	}
}

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"surplus"}, {"--standalone-only"}} { // the second: not in the top folder
		var out, complaints strings.Builder
		if code := run(t.Context(), args, &out, &complaints); code != 2 || !strings.HasPrefix(complaints.String(), "demo: ") {
			t.Errorf("%v: code %d, said %q", args, code, complaints.String())
		}
	}
}
