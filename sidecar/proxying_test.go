package sidecar_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"testing"
	"time"
)

// fronted puts the sidecar before an application; its rule admits everything under any path but /refused.
func fronted(t *testing.T, application http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
		application(w, r)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return serve(t, newGuard(t, updateOf(t, nil, policy(rule("api", 1_000_000), rule("none", 0, under("/refused"))))), server.URL)
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reply is an answer whose body was read.
type reply struct {
	Proto           string
	StatusCode      int
	Header, Trailer http.Header
	ContentLength   int64
}

// do sends a request and returns the answer and its whole body.
func do(t *testing.T, via http.RoundTripper, r *http.Request) (reply, string) {
	t.Helper()
	response, err := via.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response.Proto, response.StatusCode, response.Header, response.Trailer, response.ContentLength}, string(data)
}

// overHTTP2 speaks HTTP/2 without TLS from the start.
func overHTTP2() *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return tr
}

func protocols(t *testing.T) map[string]http.RoundTripper {
	t.Helper()
	one, two := &http.Transport{}, overHTTP2()
	t.Cleanup(func() {
		one.CloseIdleConnections()
		two.CloseIdleConnections()
	})
	return map[string]http.RoundTripper{"HTTP/1.1": one, "HTTP/2.0": two}
}

func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(http.ResponseWriter, *http.Request) {})
	for name, via := range protocols(t) {
		for n := range 3 {
			reused := false
			r := request(t, http.MethodGet, "http://"+address, http.NoBody)
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}))
			if response, _ := do(t, via, r); response.Proto != name || reused != (n > 0) {
				t.Errorf("request %d over %s: %s, connection reused: %v", n, name, response.Proto, reused)
			}
		}
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for n := range 5 {
		fmt.Fprintf(conn, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", n)
	}
	answers := bufio.NewReader(conn)
	for n := range 5 {
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(response.Body); string(got) != fmt.Sprintf("/%d", n) {
			t.Errorf("answer %d is for %s", n, got)
		}
		_ = response.Body.Close()
	}
}

func TestBodiesAndTrailersPassBothWays(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		n, err := io.Copy(w, r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%d bytes, %s", n, r.Trailer.Get("X-Note")))
	})
	for name, via := range protocols(t) {
		for _, size := range []int{1, 100_000} {
			text := strings.Repeat("x", size)
			r := request(t, http.MethodPost, "http://"+address, struct{ io.Reader }{strings.NewReader(text)}) // of unknown length: chunked
			r.Trailer = http.Header{"X-Note": {"checked"}}
			response, got := do(t, via, r)
			if want := fmt.Sprintf("%d bytes, checked", size); got != text || response.Trailer.Get("X-Sum") != want {
				t.Errorf("%s: %d of %d bytes, trailer %q, want %q", name, len(got), size, response.Trailer.Get("X-Sum"), want)
			}
		}
	}
}

func TestABodyIsAskedForOnlyWhereItIsWanted(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unwanted" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	for path, want := range map[string][]int{"/wanted": {100, 200}, "/unwanted": {417}, "/refused": {429}} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", path)
		answers := textproto.NewReader(bufio.NewReader(conn))
		for _, status := range want {
			line, err := answers.ReadLine()
			if err != nil || !strings.HasPrefix(line, fmt.Sprintf("HTTP/1.1 %d ", status)) {
				t.Fatalf("%s: %q, %v, want %d", path, line, err, status)
			}
			if _, err := answers.ReadMIMEHeader(); err != nil {
				t.Fatal(err)
			}
			if status == http.StatusContinue {
				_, _ = io.WriteString(conn, "hello")
			}
		}
	}
}

func TestHEADHasNoBody(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5") })
	for name, via := range protocols(t) {
		for path, want := range map[string]int{"/": 200, "/refused": 429} {
			response, body := do(t, via, request(t, http.MethodHead, "http://"+address+path, http.NoBody))
			if response.StatusCode != want || body != "" || response.ContentLength <= 0 {
				t.Errorf("%s %s: %d, length %d, body %q", name, path, response.StatusCode, response.ContentLength, body)
			}
		}
	}
}

func TestAnswersWithoutABodyKeepTheirForm(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") == `"a"` {
			w.Header().Set("ETag", `"a"`)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	r := request(t, http.MethodGet, "http://"+address, http.NoBody)
	r.Header.Set("If-None-Match", `"a"`)
	if response, body := do(t, &http.Transport{}, r); response.StatusCode != http.StatusNotModified || body != "" ||
		response.Header.Get("ETag") != `"a"` || response.Header.Get("RateLimit-Remaining") == "" {
		t.Errorf("%d %v %q", response.StatusCode, response.Header, body)
	}
}

func TestEarlyHintsPass(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	})
	hints := 0
	r := request(t, http.MethodGet, "http://"+address, http.NoBody)
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		hints += code
		return nil
	}}))
	if response, _ := do(t, &http.Transport{}, r); hints != http.StatusEarlyHints || response.Header.Get("RateLimit-Remaining") == "" {
		t.Errorf("hints %d, %v", hints, response.Header)
	}
}

func TestEventsArriveWhileTheStreamIsOpen(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", n)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
	})
	for name, via := range protocols(t) {
		response, err := via.RoundTrip(request(t, http.MethodGet, "http://"+address, http.NoBody))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(response.Body)
		for n := range 3 {
			if line, err := lines.ReadString('\n'); line != fmt.Sprintf("data: %d\n", n) || err != nil {
				t.Fatalf("%s: event %q, %v", name, line, err)
			}
			_, _ = lines.ReadString('\n')
			next <- struct{}{}
		}
		_ = response.Body.Close()
	}
}

func TestACallerThatLeavesEndsTheWorkBehind(t *testing.T) {
	t.Parallel()
	arrived, ended := make(chan struct{}), make(chan struct{})
	address := fronted(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	for name, via := range protocols(t) {
		ctx, leave := context.WithCancel(t.Context())
		r := request(t, http.MethodGet, "http://"+address, http.NoBody).WithContext(ctx)
		go func() {
			response, err := via.RoundTrip(r)
			if err == nil {
				_ = response.Body.Close()
				t.Errorf("%s: answered %s", name, response.Status)
			}
		}()
		<-arrived
		leave()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%s: the application works on for a caller that left", name)
		}
	}
}

func TestUpgradesPassBytesBothWays(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-WebSocket-Key") == "" {
			t.Errorf("the application was asked for %v", r.Header)
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	})
	handshake := func(path string) (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", path)
		answers := bufio.NewReader(conn)
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, answers, response
	}
	conn, answers, response := handshake("/chat")
	defer response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("RateLimit-Remaining") == "" {
		t.Fatalf("%s %v", response.Status, response.Header)
	}
	for _, message := range []string{"\x81\x85\x00\x00\x00\x00hello\n", "\x82\x01\n", "GET /refused HTTP/1.1\n"} {
		if _, err := io.WriteString(conn, message); err != nil {
			t.Fatal(err)
		}
		if echo, err := answers.ReadString('\n'); echo != message || err != nil {
			t.Errorf("%q came back as %q, %v", message, echo, err)
		}
	}
	_, _, refused := handshake("/refused")
	defer refused.Body.Close()
	if refused.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a refused upgrade: %s", refused.Status)
	}
}

// endless yields so many bytes.
type endless struct{ left int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	e.left -= n
	return int(n), nil
}

func TestLargeBodiesTakeLittleMemory(t *testing.T) { //nolint:paralleltest // it measures memory
	const size = 24 << 20
	address := fronted(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.CopyN(w, r.Body, size) })
	for name, via := range protocols(t) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		response, err := via.RoundTrip(request(t, http.MethodPost, "http://"+address, &endless{size}))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapSys) - int64(before.HeapSys); n != size || err != nil || grown > 12<<20 {
			t.Errorf("%s: %d bytes came back, %v; the heap grew by %d MiB", name, n, err, grown>>20)
		}
	}
}

func TestTheApplicationsOwnFieldsAreReplaced(t *testing.T) {
	t.Parallel()
	address := fronted(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"RateLimit", "RateLimit-Policy", "RateLimit-Limit", "X-RateLimit-Remaining"} {
			w.Header().Set(name, "mine")
		}
	})
	_, header, _ := raw(t, stranger, address, to("/"))
	var text bytes.Buffer
	if err := header.Write(&text); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "mine") || header.Get("RateLimit-Limit") != "1000000" {
		t.Errorf("%s", &text)
	}
}
