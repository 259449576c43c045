// Package identity tells who is calling: the client's address through trusted proxies, then the first of token, API
// key and trusted headers that is presented. It knows HTTP headers and the push contract, and nothing of limits.
package identity

import (
	"crypto/sha256"
	"crypto/subtle"
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
		r.keys[[sha256.Size]byte(k.GetHash())] = k
	}
	return r, nil
}

func newSource(s *pushv1.Identity_CredentialSource) *source {
	return &source{header: textproto.CanonicalMIMEHeaderKey(s.GetHeader()), prefix: s.GetPrefix()}
}

// credential returns what the header carries; several lines are one credential that is not valid.
func (s *source) credential(h http.Header) (value string, presented bool) {
	lines := h[s.header]
	if len(lines) == 0 {
		return "", false
	}
	value = lines[0]
	if len(value) < len(s.prefix) || !strings.EqualFold(value[:len(s.prefix)], s.prefix) {
		return "", false
	}
	if len(lines) > 1 {
		return "", true
	}
	return strings.TrimSpace(value[len(s.prefix):]), true
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
	if r.trusted == nil || !r.trusts(peer) {
		return false
	}
	lines := h[textproto.CanonicalMIMEHeaderKey(r.trusted.GetId())]
	if len(lines) == 0 || lines[0] == "" {
		return false
	}
	if len(lines) > 1 {
		caller.Invalid = true
		return true
	}
	caller.Authenticated, caller.ID = true, lines[0]
	caller.Key = "header|" + lines[0]
	caller.Claims = map[string]any{}
	for claim, header := range r.trusted.GetClaims() {
		if v := h.Get(header); v != "" {
			caller.Claims[claim] = v
		}
	}
	return true
}

// TrustedHeaders lists the headers that only a trusted proxy may set, and tells whether the peer is one.
func (r *Resolver) TrustedHeaders(peer netip.Addr) (names []string, trusted bool) {
	if r.trusted == nil {
		return nil, false
	}
	names = append(names, textproto.CanonicalMIMEHeaderKey(r.trusted.GetId()))
	for _, header := range r.trusted.GetClaims() {
		names = append(names, textproto.CanonicalMIMEHeaderKey(header))
	}
	return names, r.trusts(peer)
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
