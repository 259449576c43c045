package limiter

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
)

// CounterKey appends the name of a counter that identifies it over edits and processes: everything of a check that a
// counter depends on, and neither time nor the limit's value. All limits of a check share what stands in braces, so
// that a Redis Cluster keeps them together: sluice:{namespace/digest}:algorithm+window.
func (c *Check) CounterKey(dst []byte, limit int) []byte {
	dst = c.appendTag(dst)
	dst = append(dst, ':', c.Rule.Algorithm.letter())
	return strconv.AppendInt(dst, c.Rule.Limits[limit].Window.Milliseconds(), 10)
}

// LeasesKey appends the name under which the units are kept that are leased of all the check's counters.
func (c *Check) LeasesKey(dst []byte) []byte {
	return append(c.appendTag(dst), ":leases"...)
}

func (c *Check) appendTag(dst []byte) []byte {
	dst = append(dst, "sluice:{"...)
	dst = append(dst, c.Rule.Namespace...)
	dst = append(dst, '/')
	var buf [256]byte
	text := append(buf[:0], c.Rule.Scope...)
	text = append(text, 0, c.Rule.Algorithm.letter(), 0)
	text = append(text, c.Key...)
	sum := sha256.Sum256(text)
	dst = base64.RawURLEncoding.AppendEncode(dst, sum[:16])
	return append(dst, '}')
}

func (a Algorithm) letter() byte {
	const letters = "?tlfsc"
	if int(a) >= len(letters) {
		return letters[0]
	}
	return letters[a]
}
