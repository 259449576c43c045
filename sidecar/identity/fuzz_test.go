package identity_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
	"github.com/sluice-dev/sluice/sidecar/identity"
)

func resolver(tb testing.TB, id *pushv1.Identity, sets map[string][]byte) *identity.Resolver {
	tb.Helper()
	id.Ipv4PrefixLength, id.Ipv6PrefixLength = 32, 64
	r, err := identity.NewResolver(id, nil, sets, clock.Real(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// What a caller writes may only name another caller where every address to its right is a trusted proxy's.
func FuzzForwardedAddresses(f *testing.F) {
	for _, seed := range []string{
		"198.51.100.7", "1.1.1.1, 198.51.100.7:80", "[2001:db8::1]:4711, 10.0.0.1", "for=198.51.100.7", `for="[2001:db8::1]:_x";proto=https, for=10.0.0.1`,
		`for="a, for=b`, ",,", "::ffff:10.0.0.1", "fe80::1%eth0", "unknown",
	} {
		f.Add(seed, seed)
	}
	r := resolver(f, &pushv1.Identity{TrustedProxies: []string{"10.0.0.0/8"}}, nil)
	proxy, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	f.Fuzz(func(t *testing.T, xff, forwarded string) {
		h := http.Header{"X-Forwarded-For": {xff}, "Forwarded": {forwarded}}
		if got := r.Resolve(stranger, h); got.Address != stranger {
			t.Errorf("a stranger passes for %s", got.Address)
		}
		// A proxy that puts its peer behind whatever it got.
		h = http.Header{"X-Forwarded-For": {xff + ", " + stranger.String()}}
		if got := r.Resolve(proxy, h); got.Address != stranger {
			t.Errorf("X-Forwarded-For %q makes %s of %s", xff, got.Address, stranger)
		}
		h = http.Header{"Forwarded": {forwarded, "for=" + stranger.String()}}
		if got := r.Resolve(proxy, h); got.Address != stranger {
			t.Errorf("Forwarded %q makes %s of %s", forwarded, got.Address, stranger)
		}
		h = http.Header{"X-Forwarded-For": {xff}, "Forwarded": {forwarded}}
		if got := r.Resolve(proxy, h).Address; !got.IsValid() || got.Is4In6() || got.Zone() != "" {
			t.Errorf("%q and %q make %s", xff, forwarded, got)
		}
	})
}

func FuzzTokens(f *testing.F) {
	const keys = `{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
	for _, seed := range []string{
		"", "..", "eyJhbGciOiJub25lIn0.eyJpc3MiOiJpIiwic3ViIjoiYSIsImV4cCI6OTk5OTk5OTk5OX0.", "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJpc3MiOiJpIn0.AAAA",
		"eyJhbGciOiJIUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJpIiwic3ViIjoiYSIsImV4cCI6OTk5OTk5OTk5OX0.AAAA", "bnVsbA.bnVsbA.", "W10.W10.",
	} {
		f.Add(seed)
	}
	r := resolver(f, &pushv1.Identity{Jwt: []*pushv1.Identity_JWT{{
		Issuer: "i", IdClaim: "sub", From: &pushv1.Identity_CredentialSource{Header: "authorization", Prefix: "Bearer "},
	}}}, map[string][]byte{"i": []byte(keys)})
	f.Fuzz(func(t *testing.T, token string) {
		got := r.Resolve(netip.MustParseAddr("203.0.113.9"), http.Header{"Authorization": {"Bearer " + token}})
		if got.Authenticated || !got.Invalid || got.Key != "ip|203.0.113.9" {
			t.Errorf("%q makes %+v", token, got)
		}
	})
}
