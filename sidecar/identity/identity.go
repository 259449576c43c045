// Package identity tells who is calling: the client's address through trusted proxies, then the first of token, API
// key and trusted headers that is presented. It knows HTTP headers and the push contract, and nothing of limits.
package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Caller is who is calling.
type Caller struct {
	Address       netip.Addr // of the client
	Authenticated bool
	Invalid       bool   // a credential was presented and is not valid
	ID            string // "" where not authenticated
	// Key tells callers apart: jwt|issuer|id, apikey|id, header|id or ip|prefix. Kinds never merge.
	Key    string
	Claims map[string]any
}

// Resolver tells callers by one policy's identity.
type Resolver struct {
	proxies []netip.Prefix
	bits4   int
	bits6   int
	tokens  []*tokenSource
	apiKeys *source
	keys    map[[sha256.Size]byte]*pushv1.APIKey
	trusted *pushv1.Identity_TrustedHeaders
	rejects bool
}

// source is a header that carries a credential.
type source struct{ header, prefix string }

// mappedBits is how many bits of an IPv4-mapped IPv6 address stand before the IPv4 address.
const mappedBits = 96

// ErrKey tells that a credential can't be read as it was given.
var ErrKey = errors.New("unreadable key")

// Refresh asks for an issuer's keys anew, because a token names one that is not there.
type Refresh func(issuer, keyID string)

// NewResolver compiles a policy's identity with its API keys and key sets. The error tells which key set can't be read.
func NewResolver(id *pushv1.Identity, keys []*pushv1.APIKey, sets map[string][]byte, c clock.Clock, refresh Refresh) (*Resolver, error) {
	r := &Resolver{
		bits4: int(id.GetIpv4PrefixLength()), bits6: int(id.GetIpv6PrefixLength()),
		trusted: id.GetTrustedHeaders(), rejects: id.GetRejectInvalidCredential(),
		keys: map[[sha256.Size]byte]*pushv1.APIKey{},
	}
	for _, cidr := range id.GetTrustedProxies() {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("trusted proxy %q: %w", cidr, err)
		}
		if p.Addr().Is4In6() && p.Bits() >= mappedBits {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
		}
		r.proxies = append(r.proxies, p)
	}
	for _, j := range id.GetJwt() {
		t, err := newTokenSource(j, sets[j.GetIssuer()], c, refresh)
		if err != nil {
			return nil, err
		}
		r.tokens = append(r.tokens, t)
	}
	if s := id.GetApiKeys().GetFrom(); s != nil {
		r.apiKeys = newSource(s)
	}
	for _, k := range keys {
		if len(k.GetHash()) != sha256.Size {
			return nil, fmt.Errorf("API key of %q: %w: its hash has %d bytes", k.GetId(), ErrKey, len(k.GetHash()))
		}
		r.keys[[sha256.Size]byte(k.GetHash())] = k
	}
	return r, nil
}

func newSource(s *pushv1.Identity_CredentialSource) *source {
	return &source{header: textproto.CanonicalMIMEHeaderKey(s.GetHeader()), prefix: s.GetPrefix()}
}

// credential returns what the header carries. Where one of several lines carries a credential, nobody can tell which line
// the application reads: then the credential is not valid, as is a prefix with nothing behind it.
func (s *source) credential(h http.Header) (value string, presented bool) {
	lines := h[s.header]
	for _, line := range lines {
		rest, found := cutPrefixFold(line, s.prefix)
		if found {
			value, presented = strings.TrimSpace(rest), true
		}
	}
	if len(lines) > 1 {
		return "", presented
	}
	return value, presented
}

// cutPrefixFold is strings.CutPrefix for ASCII in either case. net/http has cut the space at a line's end.
func cutPrefixFold(line, prefix string) (rest string, found bool) {
	if strings.EqualFold(line, strings.TrimSpace(prefix)) {
		return "", true
	}
	if len(line) < len(prefix) || !strings.EqualFold(line[:len(prefix)], prefix) {
		return "", false
	}
	return line[len(prefix):], true
}

// RejectsInvalid tells whether a caller with an invalid credential is to be turned away.
func (r *Resolver) RejectsInvalid() bool { return r.rejects }

// Resolve tells who sent a request that came from peer. A credential that is presented and not valid makes the
// caller anonymous and Invalid; later sources are not asked.
func (r *Resolver) Resolve(peer netip.Addr, h http.Header) Caller {
	caller := Caller{Address: r.clientAddress(peer, h)}
	switch {
	case r.byToken(h, &caller):
	case r.byAPIKey(h, &caller):
	case r.byHeaders(peer, h, &caller):
	}
	if !caller.Authenticated {
		caller.Key = "ip|" + r.prefix(caller.Address)
	}
	return caller
}

// AddressKey is the key of a caller by its address alone.
func (r *Resolver) AddressKey(a netip.Addr) string { return "ip|" + r.prefix(a) }

func (r *Resolver) prefix(a netip.Addr) string {
	bits := r.bits4
	if a.Is6() {
		bits = r.bits6
	}
	if bits == a.BitLen() {
		return a.String()
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return a.String()
	}
	return p.String()
}

func (r *Resolver) byAPIKey(h http.Header, caller *Caller) bool {
	if r.apiKeys == nil {
		return false
	}
	value, presented := r.apiKeys.credential(h)
	if !presented {
		return false
	}
	// Looked up by hash, so that the time taken tells nothing of a key; the comparison is for the hash's own sake.
	hash := sha256.Sum256([]byte(value))
	key, found := r.keys[hash]
	if !found || subtle.ConstantTimeCompare(hash[:], key.GetHash()) != 1 {
		caller.Invalid = true
		return true
	}
	caller.Authenticated, caller.ID = true, key.GetId()
	caller.Key = "apikey|" + key.GetId()
	caller.Claims = anyClaims(key.GetClaims())
	return true
}

func (r *Resolver) byHeaders(peer netip.Addr, h http.Header, caller *Caller) bool {
	if r.trusted == nil || !r.Trusts(peer) {
		return false
	}
	lines := h[textproto.CanonicalMIMEHeaderKey(r.trusted.GetId())]
	if len(lines) == 0 || lines[0] == "" {
		return false
	}
	claims := map[string]any{}
	several := len(lines) > 1
	for claim, header := range r.trusted.GetClaims() {
		values := h[textproto.CanonicalMIMEHeaderKey(header)]
		several = several || len(values) > 1
		if len(values) > 0 && values[0] != "" {
			claims[claim] = values[0]
		}
	}
	if several { // one of them is the caller's
		caller.Invalid = true
		return true
	}
	caller.Authenticated, caller.ID, caller.Claims = true, lines[0], claims
	caller.Key = "header|" + lines[0]
	return true
}

// TrustedHeaders lists the headers that only a trusted proxy may set.
func (r *Resolver) TrustedHeaders() []string {
	if r.trusted == nil {
		return nil
	}
	names := []string{textproto.CanonicalMIMEHeaderKey(r.trusted.GetId())}
	for _, header := range r.trusted.GetClaims() {
		names = append(names, textproto.CanonicalMIMEHeaderKey(header))
	}
	return names
}

// CredentialHeaders lists the headers that carry credentials.
func (r *Resolver) CredentialHeaders() []string {
	var names []string
	for _, t := range r.tokens {
		names = append(names, t.from.header)
	}
	if r.apiKeys != nil {
		names = append(names, r.apiKeys.header)
	}
	return names
}

func anyClaims(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// joinKey joins parts so that no two lists of parts look the same.
func joinKey(kind string, parts ...string) string {
	var b strings.Builder
	b.WriteString(kind)
	for _, p := range parts[:len(parts)-1] {
		b.WriteByte('|')
		if strings.Contains(p, "|") {
			b.WriteString(strconv.Quote(p))
			continue
		}
		b.WriteString(p)
	}
	b.WriteByte('|')
	b.WriteString(parts[len(parts)-1])
	return b.String()
}
