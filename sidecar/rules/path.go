package rules

import (
	"fmt"
	"net/url"
	"strings"
)

// NormalizePath brings an escaped path into the one form in which paths are matched: unreserved characters decoded
// (RFC 3986 §2.3), escapes in upper case, slashes merged, dot segments removed.
func NormalizePath(escaped string) string {
	if isNormal(escaped) {
		return escaped
	}
	decoded := decodeUnreserved(escaped)
	var kept []string
	segments := strings.Split(decoded, "/")
	for _, s := range segments {
		switch s {
		case "", ".":
		case "..":
			if len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
		default:
			kept = append(kept, s)
		}
	}
	path := "/" + strings.Join(kept, "/")
	if last := segments[len(segments)-1]; len(kept) > 0 && (last == "" || last == "." || last == "..") {
		path += "/"
	}
	return path
}

// EscapePath escapes the characters of a request's path that must not stand in a URL, and leaves all others as they came: so
// the application gets the bytes that were matched. Without it, net/url would decode and encode the whole path anew.
func EscapePath(u *url.URL) {
	if u.RawPath == "" || u.EscapedPath() == u.RawPath {
		return
	}
	var b strings.Builder
	for i := range len(u.RawPath) {
		if c := u.RawPath[i]; isUnreserved(c) || strings.IndexByte("/%!$&'()*+,;=:@[]", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	u.RawPath = b.String()
}

// isNormal spares most paths the work.
func isNormal(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	for i := range len(p) {
		switch {
		case p[i] == '%':
			return false
		case p[i] == '/' && i+1 < len(p) && (p[i+1] == '/' || p[i+1] == '.'):
			return false
		}
	}
	return true
}

func decodeUnreserved(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if p[i] != '%' || i+2 >= len(p) || !isHex(p[i+1]) || !isHex(p[i+2]) {
			b.WriteByte(p[i])
			continue
		}
		if c := unhex(p[i+1])<<4 | unhex(p[i+2]); isUnreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteString(strings.ToUpper(p[i : i+3]))
		}
		i += 2
	}
	return b.String()
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	default:
		return c - 'A' + 10
	}
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}
