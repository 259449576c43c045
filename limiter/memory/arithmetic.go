package memory

import "math/bits"

// muldiv returns floor(a·b/c) and the remainder, exactly. The quotient must fit: a·b < c·2^64.
func muldiv(a, b, c int64) (quotient, remainder int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // never negative
	q, r := bits.Div64(hi, lo, uint64(c))      //nolint:gosec // never negative
	return int64(q), int64(r)                  //nolint:gosec // both fit, see above
}

// ceilDiv returns a/b rounded up, for a ≥ 0 and b > 0.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
