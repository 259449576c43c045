package controllers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/compile"
)

const (
	fetchTimeout  = 10 * time.Second
	freshDefault  = 10 * time.Minute
	freshLeast    = time.Minute
	freshMost     = time.Hour
	retryFirst    = 5 * time.Second
	retryLast     = 5 * time.Minute
	refreshBefore = 10 // a tenth of the life before its end
	refreshAtMost = 10 * time.Second
	maxRedirects  = 3
)

// Errors of fetching key sets.
var (
	errNotFetched = errors.New("not fetched yet")
	errAddress    = errors.New("the address is not public: allow it with --jwks-allow-cidr")
	errRedirect   = errors.New("redirects to another host are not followed")
	errStatus     = errors.New("unexpected status")
)

// KeySets fetches JSON Web Key Sets, each address once for all its users, refreshes them before they expire, and keeps
// the last good one while the address does not answer.
type KeySets struct {
	client  *http.Client
	clock   clock.Clock
	changed func(namespace string)

	mu   sync.Mutex
	ctx  context.Context //nolint:containedctx // ends all fetching; a fetch begins by a look-up, whose context is shorter
	sets map[string]*keySet
}

// keySet is what one address gave.
type keySet struct {
	data  []byte
	etag  string
	err   error                      // of the last attempt
	users map[string]map[string]bool // namespace and issuer
	wake  chan struct{}
	stop  context.CancelFunc
}

// NewKeySets fetches over https from public addresses and from those allowed, until the context ends. Changed hears of
// the namespaces whose keys changed; it must not block.
func NewKeySets(ctx context.Context, transport *http.Transport, allowed []netip.Prefix, c clock.Clock, changed func(string)) *KeySets {
	dialer := &net.Dialer{Timeout: fetchTimeout, Control: func(_, address string, _ syscall.RawConn) error { return mayDial(address, allowed) }}
	transport.Proxy, transport.DialContext = nil, dialer.DialContext // a proxy would dial where this operator may not
	client := &http.Client{Transport: transport, Timeout: fetchTimeout, CheckRedirect: mayRedirect}
	return &KeySets{client: client, clock: c, changed: changed, ctx: ctx, sets: map[string]*keySet{}}
}

// special are addresses that net/netip calls global and that no public server has.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16"),
}

// mayDial looks at the address that a name led to, so that no name leads into the cluster.
func mayDial(address string, allowed []netip.Prefix) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errAddress, address)
	}
	ip := a.Addr().Unmap().WithZone("")
	holds := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(allowed, holds) || ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(special, holds) {
		return nil
	}
	return fmt.Errorf("%w: %s", errAddress, ip)
}

func mayRedirect(next *http.Request, via []*http.Request) error {
	if next.URL.Scheme != "https" || next.URL.Host != via[0].URL.Host || len(via) > maxRedirects {
		return fmt.Errorf("%w: %s", errRedirect, next.URL.Redacted())
	}
	return nil
}

// Get returns the key set of an address, from memory; the first that asks makes it be fetched.
func (k *KeySets) Get(uri, namespace, issuer string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sets[uri]
	if s == nil {
		ctx, stop := context.WithCancel(k.ctx)
		s = &keySet{err: errNotFetched, users: map[string]map[string]bool{}, wake: make(chan struct{}, 1), stop: stop}
		k.sets[uri] = s
		go k.keep(ctx, uri, s)
	}
	if s.users[namespace] == nil {
		s.users[namespace] = map[string]bool{}
	}
	s.users[namespace][issuer] = true
	if s.data == nil {
		return nil, fmt.Errorf("fetch %s: %w", redacted(uri), s.err)
	}
	return s.data, nil
}

// Retain forgets what a namespace no longer uses, and stops fetching what nobody uses.
func (k *KeySets) Retain(namespace string, uris map[string]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uri, s := range k.sets {
		if uris[uri] {
			continue
		}
		delete(s.users, namespace)
		if len(s.users) == 0 {
			s.stop()
			delete(k.sets, uri)
		}
	}
}

// Refresh fetches an issuer's keys anew, since a token of a namespace named one that is not there; at most every ten seconds.
func (k *KeySets) Refresh(namespace, issuer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.sets {
		if s.users[namespace][issuer] {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

// keep fetches again and again.
func (k *KeySets) keep(ctx context.Context, uri string, s *keySet) {
	retry := retryFirst
	for {
		fresh, err := k.fetch(ctx, uri, s)
		wait := fresh - fresh/refreshBefore
		if err != nil {
			wait, retry = retry, min(retry*2, retryLast)
		} else {
			retry = retryFirst
		}
		least, next := k.clock.NewTimer(min(refreshAtMost, wait)), k.clock.NewTimer(wait)
		for _, waits := range []func() bool{
			func() bool { return await(ctx, least.C(), nil) },
			func() bool { return await(ctx, next.C(), s.wake) },
		} {
			if !waits() {
				least.Stop()
				next.Stop()
				return
			}
		}
		next.Stop()
	}
}

func await(ctx context.Context, timer <-chan time.Time, wake <-chan struct{}) bool {
	select {
	case <-timer:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// fetch asks once and says for how long the answer is fresh.
func (k *KeySets) fetch(ctx context.Context, uri string, s *keySet) (time.Duration, error) {
	k.mu.Lock()
	etag := s.etag
	k.mu.Unlock()
	data, newTag, fresh, err := k.ask(ctx, uri, etag)
	k.mu.Lock()
	defer k.mu.Unlock()
	before := s.err
	s.err = err
	if err == nil && data != nil {
		s.data, s.etag = data, newTag
	}
	if data != nil || !errors.Is(err, before) {
		for namespace := range s.users {
			k.changed(namespace)
		}
	}
	return fresh, err
}

// ask returns no data where the server says that nothing changed.
func (k *KeySets) ask(ctx context.Context, uri, etag string) (data []byte, newTag string, fresh time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, "", 0, fmt.Errorf("address: %w", err)
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response, err := k.client.Do(request)
	if err != nil {
		return nil, "", 0, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	fresh = freshness(response.Header.Get("Cache-Control"))
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return nil, etag, fresh, nil
	default:
		return nil, "", 0, fmt.Errorf("%w: %s", errStatus, response.Status)
	}
	data, err = io.ReadAll(io.LimitReader(response.Body, compile.MaxKeySet+1))
	if err != nil {
		return nil, "", 0, fmt.Errorf("read: %w", err)
	}
	if _, err := compile.KeySet("", "", data); err != nil {
		return nil, "", 0, err
	}
	return data, response.Header.Get("Etag"), fresh, nil
}

// freshness reads max-age, within bounds.
func freshness(cacheControl string) time.Duration {
	for part := range strings.SplitSeq(cacheControl, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if seconds, err := strconv.Atoi(value); err == nil && strings.EqualFold(name, "max-age") {
			return min(max(time.Duration(min(seconds, int(freshMost/time.Second)))*time.Second, freshLeast), freshMost)
		}
	}
	return freshDefault
}

func redacted(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return "the address"
	}
	return u.Redacted()
}
