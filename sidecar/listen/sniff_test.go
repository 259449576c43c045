package listen_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/sidecar/listen"
)

const patience = 20 * time.Second

func tcp(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// application says a greeting first, and then echoes.
func application(t *testing.T, greeting string) string {
	t.Helper()
	address, _ := dialled(t, greeting)
	return address
}

// dialled is an application that tells of each connection.
func dialled(t *testing.T, greeting string) (address string, connections <-chan struct{}) {
	t.Helper()
	l, made := tcp(t), make(chan struct{}, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			made <- struct{}{}
			go func() {
				_, _ = io.WriteString(conn, greeting)
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String(), made
}

// front serves HTTP with 429 and passes everything else to an application.
func front(t *testing.T, application string) (address string, opaque *atomic.Int32) {
	t.Helper()
	opaque = &atomic.Int32{}
	log := slog.New(slog.DiscardHandler)
	target := func(net.Conn) (string, error) { return application, nil }
	s := listen.Sniff(context.WithoutCancel(t.Context()), tcp(t), target, func() { opaque.Add(1) }, log)
	server := listen.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }), true, log)
	go func() { _ = server.Serve(s) }()
	t.Cleanup(func() { _ = server.Close() })
	return s.Addr().String(), opaque
}

func connect(t *testing.T, to string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestNothingThatAServerTakesForARequestPassesUnlimited(t *testing.T) {
	t.Parallel()
	address, opaque := front(t, application(t, ""))
	for name, request := range map[string]string{
		"a request": "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "in lower case": "get / HTTP/1.1\r\nHost: a\r\n\r\n", "a method of one's own": "*a!1 / HTTP/1.1\r\nHost: a\r\n\r\n",
		"empty lines before": "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "a bare line feed": "\nGET / HTTP/1.1\nHost: a\n\n", "tabs": "GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n",
		"a space before": " GET / HTTP/1.1\r\nHost: a\r\n\r\n", "a control character": "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/0.9": "GET /a/path/of/some/length\r\n", "HTTP/1.0": "GET / HTTP/1.0\r\n\r\n", "the version in lower case": "GET / http/1.1\r\n\r\n",
		"a long line": "POST /" + strings.Repeat("a", 6000) + " HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, address)
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%q was not answered by the sidecar: %v", request, err)
			}
			defer response.Body.Close()
			if response.StatusCode < 400 {
				t.Errorf("%q: %s", request, response.Status)
			}
		})
	}
	t.Cleanup(func() {
		if n := opaque.Load(); n != 0 {
			t.Errorf("%d connections passed through", n)
		}
	})
}

func TestASlowRequestIsStillARequest(t *testing.T) {
	t.Parallel()
	behind, asked := dialled(t, "")
	address, opaque := front(t, behind)
	conn := connect(t, address)
	<-asked // the sidecar looks whether the application speaks first
	for _, part := range []string{"GE", "T / HTTP", "/1.1\r\nHost: a\r\n\r\n"} {
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusTooManyRequests || opaque.Load() != 0 {
		t.Errorf("%s, %d passed through", response.Status, opaque.Load())
	}
}

func TestWhatIsNotHTTPPassesThroughAndIsCounted(t *testing.T) {
	t.Parallel()
	address, opaque := front(t, application(t, ""))
	for name, hello := range map[string]string{
		"TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PostgreSQL": "\x00\x00\x00\x08\x04\xd2\x16\x2f", "Redis": "*1\r\n$4\r\nPING\r\n", "AMQP": "AMQP\x00\x00\x09\x01",
		"memcached": "get key\r\n", "SSH": "SSH-2.0-OpenSSH_9.2 Debian\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, address)
			if _, err := io.WriteString(conn, hello); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if echo, err := io.ReadAll(conn); string(echo) != hello || err != nil {
				t.Errorf("got %q, %v back of %q", echo, err, hello)
			}
		})
	}
	t.Cleanup(func() {
		if n := opaque.Load(); n != 6 {
			t.Errorf("%d counted, want 6", n)
		}
	})
}

func TestAServerThatSpeaksFirstIsHeard(t *testing.T) {
	t.Parallel()
	address, opaque := front(t, application(t, "220 mail.example\r\n"))
	conn := connect(t, address)
	lines := bufio.NewReader(conn)
	if greeting, err := lines.ReadString('\n'); greeting != "220 mail.example\r\n" || err != nil {
		t.Fatalf("greeted with %q, %v", greeting, err)
	}
	if _, err := io.WriteString(conn, "EHLO a\r\n"); err != nil {
		t.Fatal(err)
	}
	if echo, err := lines.ReadString('\n'); echo != "EHLO a\r\n" || err != nil || opaque.Load() != 1 {
		t.Errorf("answered with %q, %v; %d counted", echo, err, opaque.Load())
	}
}
