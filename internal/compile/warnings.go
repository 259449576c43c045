package compile

import (
	"fmt"
	"net/netip"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Warnings tells what is legal but probably not meant, of a policy whose defaults are filled in.
func Warnings(p *v1alpha1.RateLimitPolicy) []string {
	var list []string
	if id := p.Spec.Identity; id != nil && id.ClientIP != nil {
		for i, cidr := range id.ClientIP.TrustedProxies {
			if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Bits() < widest(prefix) {
				list = append(list, fmt.Sprintf("spec.identity.clientIP.trustedProxies[%d]: %s is wide: whoever has an address in it can choose the address that is limited", i, cidr))
			}
		}
	}
	for i := range p.Spec.Rules {
		list = append(list, ruleWarnings(i, &p.Spec.Rules[i])...)
	}
	return list
}

func widest(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 16
	}
	return 32
}

func ruleWarnings(i int, r *v1alpha1.Rule) []string {
	var list []string
	cost, constant := constantCost(r.Cost)
	for j, l := range r.Limits {
		at := fmt.Sprintf("spec.rules[%d].limits[%d]", i, j)
		if l.Requests == nil {
			continue
		}
		capacity := *l.Requests
		if l.Burst != nil {
			capacity = *l.Burst
		}
		switch {
		case *l.Requests == 0:
			list = append(list, at+".requests: 0 refuses every request")
		case constant && cost > capacity && r.Algorithm != v1alpha1.AlgorithmLeakyBucket:
			list = append(list, fmt.Sprintf("%s: a cost of %d is above the limit: every request can never be admitted", at, cost))
		case r.Algorithm == v1alpha1.AlgorithmSlidingWindowLog && *l.Requests > 10_000:
			list = append(list, fmt.Sprintf("%s: SlidingWindowLog may take %d KiB of the store for each key; SlidingWindowCounter takes one small value", at, *l.Requests*4>>10))
		}
	}
	return list
}
