package sidecar_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

// A request must not pay for the rules of other paths: compare the lines with each other.
func BenchmarkDecideAmongRules(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			policies := make([]*pushv1.Policy, 0, 4)
			for p := range (n + 249) / 250 {
				options := make([]func(*pushv1.Policy), 0, 251)
				options = append(options, func(to *pushv1.Policy) { to.Name = fmt.Sprintf("shop%d", p) })
				for r := range min(n, 250) {
					options = append(options, rule(fmt.Sprintf("r%d", r), 1_000_000, under(fmt.Sprintf("/p%d/r%d", p, r))))
				}
				policies = append(policies, policy(options...))
			}
			guard := newGuard(b, updateOf(b, nil, policies...))
			r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/p0/r0/x", http.NoBody)
			b.ReportAllocs()
			for b.Loop() {
				if v, err := guard.Decide(r, rules.Question{}); err != nil || len(v.Decided) != 1 {
					b.Fatalf("%v, %v", v, err)
				}
			}
		})
	}
}
