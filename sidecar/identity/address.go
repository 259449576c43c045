package identity

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how many entries of a forwarding header are looked at.
const maxHops = 64

// clientAddress is the nearest address on the request's way that is no trusted proxy's. Forwarding headers are read from
// the right, through trusted proxies only; an entry that is no address ends the walk at the proxy that wrote it.
//
// Where X-Forwarded-For and Forwarded (RFC 7239) are both there and disagree, one of them was written by the caller and
// nobody can tell which: then the peer's own address counts.
func (r *Resolver) clientAddress(peer netip.Addr, h http.Header) netip.Addr {
	if !r.Trusts(peer) {
		return peer
	}
	hops, forwarded := h["X-Forwarded-For"], h["Forwarded"]
	switch {
	case len(hops) == 0 && len(forwarded) == 0:
		return peer
	case len(forwarded) == 0:
		return r.walk(peer, hops, parseAddress)
	case len(hops) == 0:
		return r.walk(peer, forwarded, parseForwarded)
	}
	a, b := r.walk(peer, hops, parseAddress), r.walk(peer, forwarded, parseForwarded)
	if a != b {
		return peer
	}
	return a
}

func (r *Resolver) walk(peer netip.Addr, lines []string, parse func(string) (netip.Addr, bool)) netip.Addr {
	nearest := peer
	seen := 0
	for _, rest := range slices.Backward(lines) {
		for more := true; more; {
			entry := rest
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				entry, rest = rest[comma+1:], rest[:comma]
			} else {
				more = false
			}
			address, ok := parse(strings.TrimSpace(entry))
			if seen++; !ok || seen > maxHops {
				return nearest
			}
			nearest = address
			if !r.Trusts(address) {
				return nearest
			}
		}
	}
	return nearest
}

// Trusts tells whether an address is a trusted proxy's.
func (r *Resolver) Trusts(a netip.Addr) bool {
	for _, p := range r.proxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// parseAddress reads an address with or without a port and brackets; IPv4-mapped IPv6 is IPv4.
func parseAddress(s string) (netip.Addr, bool) {
	bare := s
	if inner, bracketed := strings.CutPrefix(s, "["); bracketed && strings.HasSuffix(inner, "]") {
		bare = strings.TrimSuffix(inner, "]")
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return canonical(a), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return canonical(ap.Addr()), true
	}
	return netip.Addr{}, false
}

// parseForwarded reads the `for` parameter of one element of Forwarded.
func parseForwarded(element string) (netip.Addr, bool) {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
		if found && strings.EqualFold(name, "for") {
			node, _, _ := strings.Cut(unquote(value), ":_") // a port may be obfuscated
			return parseAddress(node)
		}
	}
	return netip.Addr{}, false
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// canonical leaves out what does not tell callers apart: the mapping of IPv4 and the zone.
func canonical(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// PeerAddress reads the address of a connection's other end, as net/http gives it.
func PeerAddress(remote string) netip.Addr {
	a, _ := parseAddress(remote)
	return a
}
