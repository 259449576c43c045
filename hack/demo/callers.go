package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// caller is someone who calls the shop: a name, the tier that the sample policy puts it in, and its credential.
type caller struct {
	name, tier, credential string
	header, value          string
}

// answer is what one call got.
type answer struct {
	status           int
	limit, remaining string
	retryAfter       string
	pod              string
	refusal          refusal
	mediaType        string
}

// refusal is the part of a 429's body that the demo looks at.
type refusal struct {
	Limit        int64  `json:"limit"`
	CurrentCount *int64 `json:"currentCount"`
	Policy       string `json:"policy"`
	Tier         string `json:"tier"`
}

const (
	callTimeout = 10 * time.Second
	maxAnswer   = 1 << 16
)

// newClient opens a connection for each call, so that a Service spreads the calls over its pods.
func newClient() *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	return &http.Client{Transport: transport, Timeout: callTimeout}
}

// call asks for one page.
func call(ctx context.Context, client *http.Client, url string, by caller) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return answer{}, fmt.Errorf("call %s: %w", url, err)
	}
	if by.header != "" {
		request.Header.Set(by.header, by.value)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, fmt.Errorf("call as %s: %w", by.name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("read the answer to %s: %w", by.name, err)
	}
	h := response.Header
	a := answer{
		status: response.StatusCode, mediaType: h.Get("Content-Type"),
		limit: h.Get("RateLimit-Limit"), remaining: h.Get("RateLimit-Remaining"), retryAfter: h.Get("Retry-After"),
	}
	return a, a.readBody(body)
}

func (a *answer) readBody(body []byte) error {
	var err error
	switch a.status {
	case http.StatusOK:
		var page struct {
			Pod string `json:"pod"`
		}
		err = json.Unmarshal(body, &page)
		a.pod = page.Pod
	case http.StatusTooManyRequests:
		err = json.Unmarshal(body, &a.refusal)
	}
	if err != nil {
		return fmt.Errorf("an answer %d that is not the JSON it should be: %w: %q", a.status, err, body)
	}
	return nil
}

// tally is what several calls of one caller got.
type tally struct {
	caller  caller
	answers []answer
}

// burst calls n times in a row.
func burst(ctx context.Context, client *http.Client, url string, by caller, n int) (tally, error) {
	t := tally{caller: by}
	for range n {
		a, err := call(ctx, client, url, by)
		if err != nil {
			return t, err
		}
		t.answers = append(t.answers, a)
	}
	return t, nil
}

func (t tally) with(status int) []answer {
	return slices.DeleteFunc(slices.Clone(t.answers), func(a answer) bool { return a.status != status })
}

// pods are the distinct pods that answered.
func (t tally) pods() []string {
	seen := map[string]bool{}
	for _, a := range t.with(http.StatusOK) {
		seen[a.pod] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// inOrder says whether the first `allowed` calls passed and all later ones were refused.
func (t tally) inOrder(allowed int) bool {
	for i, a := range t.answers {
		want := http.StatusOK
		if i >= allowed {
			want = http.StatusTooManyRequests
		}
		if a.status != want {
			return false
		}
	}
	return true
}

// statuses writes the answers as a person would: 5×200 2×429.
func (t tally) statuses() string {
	var parts []string
	for i := 0; i < len(t.answers); {
		j := i
		for j < len(t.answers) && t.answers[j].status == t.answers[i].status {
			j++
		}
		parts = append(parts, fmt.Sprintf("%d×%d", j-i, t.answers[i].status))
		i = j
	}
	return strings.Join(parts, " ")
}

// table shows what the callers got.
func table(tallies []tally) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	row("TIER", "CREDENTIAL", "CALLS", "200s", "429s", "LIMIT", "REMAINING", "RETRY-AFTER", "PODS")
	for _, t := range tallies {
		passed, refused := t.with(http.StatusOK), t.with(http.StatusTooManyRequests)
		last, retry := answer{}, "-"
		if len(t.answers) > 0 {
			last = t.answers[len(t.answers)-1]
		}
		if len(refused) > 0 {
			retry = refused[0].retryAfter + " s"
		}
		row(t.caller.tier, t.caller.credential, strconv.Itoa(len(t.answers)), strconv.Itoa(len(passed)),
			strconv.Itoa(len(refused)), last.limit, last.remaining, retry, strconv.Itoa(len(t.pods())))
	}
	_ = w.Flush()
	return text.String()
}
