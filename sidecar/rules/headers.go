package rules

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/sidecar/identity"
)

// headers are those by which a policy, or the application, tells who is calling.
type headers struct {
	trusted map[string][]*identity.Resolver // that only a trusted proxy of one of these policies may set
	telling map[string]bool                 // these, those with credentials, and those with addresses
}

func newHeaders(policies []*Policy) headers {
	h := headers{trusted: map[string][]*identity.Resolver{}, telling: map[string]bool{
		"Forwarded": true, "X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true,
	}}
	for _, p := range policies {
		for _, name := range p.identity.TrustedHeaders() {
			h.trusted[name] = append(h.trusted[name], p.identity)
			h.telling[name] = true
		}
		for _, name := range p.identity.CredentialHeaders() {
			h.telling[name] = true
		}
	}
	return h
}

// strip takes away what would make the application see another caller than the limiter did: trusted headers of a peer that
// must not set them, also as trailers; names with underscores, which some applications read as hyphens; and a Connection
// header that would have a telling header removed on the way.
func (h *headers) strip(r *http.Request, peer netip.Addr) {
	for name := range r.Header {
		if strings.Contains(name, "_") && h.telling[textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))] {
			delete(r.Header, name)
		}
	}
	for name, policies := range h.trusted {
		delete(r.Trailer, name)
		if !slices.ContainsFunc(policies, func(p *identity.Resolver) bool { return p.Trusts(peer) }) {
			delete(r.Header, name)
		}
	}
	for i, line := range r.Header["Connection"] {
		r.Header["Connection"][i] = h.withoutTelling(line)
	}
}

func (h *headers) withoutTelling(connection string) string {
	var kept []string
	for option := range strings.SplitSeq(connection, ",") {
		if !h.telling[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(option))] {
			kept = append(kept, option)
		}
	}
	return strings.Join(kept, ",")
}
