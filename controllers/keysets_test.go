package controllers_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/internal/clock"
)

type issuer struct {
	*httptest.Server
	keys     *controllers.KeySets
	clock    *clock.Fake
	answer   atomic.Pointer[http.HandlerFunc]
	asked    chan *http.Request
	notified chan string
}

// newIssuer serves keys over https on the loopback, which is allowed unless the test says otherwise.
func newIssuer(t *testing.T, answer http.HandlerFunc, allowed ...netip.Prefix) *issuer {
	t.Helper()
	i := &issuer{clock: clock.NewFake(time.Unix(1_700_000_000, 0)), asked: make(chan *http.Request, 100), notified: make(chan string, 100)}
	i.answer.Store(&answer)
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*i.answer.Load())(w, r)
		i.asked <- r
	}))
	t.Cleanup(i.Close)
	pool := x509.NewCertPool()
	pool.AddCert(i.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	i.keys = controllers.NewKeySets(t.Context(), transport, allowed, i.clock, func(namespace string) { i.notified <- namespace })
	return i
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

func send(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Cache-Control", "public, max-age=600")
		if _, err := w.Write([]byte(text)); err != nil {
			panic(err)
		}
	}
}

// first asks for the keys and waits until the answer is there.
func (i *issuer) first(t *testing.T) ([]byte, error) {
	t.Helper()
	if _, err := i.keys.Get(i.URL, "shop", "https://id"); err == nil {
		t.Fatal("keys before they were fetched")
	}
	<-i.notified
	return i.keys.Get(i.URL, "shop", "https://id")
}

func TestKeySetsAreFetchedOnceAndRefreshedBeforeTheyExpire(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, send(`{"keys":[]}`), loopback)
	if data, err := i.first(t); err != nil || string(data) != `{"keys":[]}` {
		t.Fatalf("%s %v", data, err)
	}
	<-i.asked
	unchanged := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	i.answer.Store(&unchanged)
	i.clock.AwaitTimers(2)
	i.clock.Advance(9 * time.Minute) // of ten
	if r := <-i.asked; r.Header.Get("If-None-Match") != `"1"` {
		t.Errorf("no ETag in %v", r.Header)
	}
	if _, err := i.keys.Get(i.URL, "shop", "https://id"); err != nil {
		t.Error(err)
	}
}

func TestTheLastGoodKeySetIsKeptWhileTheIssuerFails(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, send(`{"keys":[]}`), loopback)
	if _, err := i.first(t); err != nil {
		t.Fatal(err)
	}
	<-i.asked
	broken := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	i.answer.Store(&broken)
	i.clock.AwaitTimers(2)
	i.clock.Advance(10 * time.Minute)
	<-i.asked
	<-i.notified
	if data, err := i.keys.Get(i.URL, "shop", "https://id"); err != nil || len(data) == 0 {
		t.Errorf("%s %v", data, err)
	}
}

func TestAKeyThatIsMissedIsAskedForAtMostEveryTenSeconds(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, send(`{"keys":[]}`), loopback)
	if _, err := i.first(t); err != nil {
		t.Fatal(err)
	}
	<-i.asked
	i.clock.AwaitTimers(2)
	i.keys.Refresh("shop", "https://id")
	i.keys.Refresh("other", "https://id")
	select {
	case <-i.asked:
		t.Error("asked at once")
	default:
	}
	i.clock.Advance(10 * time.Second)
	<-i.asked
}

func TestKeySetsThatAreNotFetched(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer  http.HandlerFunc
		allowed []netip.Prefix
		want    string
	}{
		"from an address that is not public": {send(`{"keys":[]}`), nil, "not public"},
		"longer than a mebibyte":             {send(`{"keys":["` + strings.Repeat("a", 1<<20) + `"]}`), []netip.Prefix{loopback}, "longer than"},
		"that are none":                      {send(`<html>`), []netip.Prefix{loopback}, "not a JSON Web Key Set"},
		"behind another host": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example.com/keys", http.StatusFound)
		}, []netip.Prefix{loopback}, "another host"},
		"behind plain http": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+r.Host, http.StatusFound)
		}, []netip.Prefix{loopback}, "another host"},
		"that the server refuses": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, []netip.Prefix{loopback}, "403"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := newIssuer(t, c.answer, c.allowed...).first(t); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}
