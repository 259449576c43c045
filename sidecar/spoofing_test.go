package sidecar_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	issuer   = "https://id.example.com"
	secret   = "https://hs.example.com" // signs with a secret
	proxyAt  = "127.0.0.1"              // a trusted proxy
	stranger = "127.0.0.9"              // any client
)

// keyring is what the issuers sign with.
type keyring struct {
	rsa, other *rsa.PrivateKey
	ec         *ecdsa.PrivateKey
	ed         ed25519.PrivateKey
	oct        []byte
}

func newKeyring(tb testing.TB) *keyring {
	tb.Helper()
	k := &keyring{oct: []byte("a secret of thirty-two bytes or so")}
	var err error
	for _, into := range []**rsa.PrivateKey{&k.rsa, &k.other} {
		if *into, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			tb.Fatal(err)
		}
	}
	if k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		tb.Fatal(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		tb.Fatal(err)
	}
	return k
}

// set is a JSON Web Key Set of keys by their id.
func set(tb testing.TB, keys map[string]any) []byte {
	tb.Helper()
	out := jwk.NewSet()
	for id, raw := range keys {
		key, err := jwk.Import(raw)
		if err != nil {
			tb.Fatal(err)
		}
		if err := key.Set(jwk.KeyIDKey, id); err != nil {
			tb.Fatal(err)
		}
		if err := out.AddKey(key); err != nil {
			tb.Fatal(err)
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

type fields map[string]any

// claims are those of a good token of ann, changed.
func claims(changes fields) fields {
	c := fields{"iss": issuer, "aud": "shop", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(c, changes)
	for name, value := range c {
		if value == nil {
			delete(c, name)
		}
	}
	return c
}

// sign makes a token that a library would make.
func sign(tb testing.TB, alg jwa.SignatureAlgorithm, key any, header, payload fields) string {
	tb.Helper()
	protected := jws.NewHeaders()
	for name, value := range header {
		if err := protected.Set(name, value); err != nil {
			tb.Fatal(err)
		}
	}
	data, err := json.Marshal(payload)
	if err != nil {
		tb.Fatal(err)
	}
	token, err := jws.Sign(data, jws.WithKey(alg, key, jws.WithProtectedHeaders(protected)))
	if err != nil {
		tb.Fatal(err)
	}
	return string(token)
}

// forge makes a token that a library would not make; mac signs it.
func forge(tb testing.TB, header, payload fields, mac []byte) string {
	tb.Helper()
	parts := make([]string, 0, 2)
	for _, part := range []fields{header, payload} {
		data, err := json.Marshal(part)
		if err != nil {
			tb.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(data))
	}
	signed := strings.Join(parts, ".")
	if mac == nil {
		return signed + "."
	}
	h := hmac.New(sha256.New, mac)
	h.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// callers is a policy whose rule "who" answers with who is calling, and whose rule "admin" refuses a path. Everything else
// reaches the application.
func callers(tb testing.TB, k *keyring) *pushv1.Update {
	tb.Helper()
	bearer := &pushv1.Identity_CredentialSource{Header: "authorization", Prefix: "Bearer "}
	p := policy(
		rule("who", 0, under("/who"), body(`identity.key + (identity.invalid ? " invalid" : "") + (identity.claims.plan == "" ? "" : " plan " + string(identity.claims.plan))`)),
		rule("admin", 0, under("/admin"), body(`"admin rule"`)),
		func(p *pushv1.Policy) {
			p.Identity.TrustedProxies = []string{proxyAt + "/32", "10.0.0.0/8", "::ffff:192.0.2.0/120", "2001:db8:ffff::/48"}
			p.Identity.Jwt = []*pushv1.Identity_JWT{
				{Issuer: issuer, Audiences: []string{"shop"}, From: bearer, IdClaim: "sub"},
				{Issuer: secret, Audiences: []string{"shop"}, From: bearer, IdClaim: "sub"},
			}
			p.Identity.ApiKeys = &pushv1.Identity_APIKeySource{From: &pushv1.Identity_CredentialSource{Header: "x-api-key"}}
			p.Identity.TrustedHeaders = &pushv1.Identity_TrustedHeaders{Id: "x-auth-user", Claims: map[string]string{"plan": "x-auth-plan"}}
		})
	hash := sha256.Sum256([]byte("good-key"))
	return updateOf(tb, &pushv1.Secrets{
		ApiKeys: []*pushv1.APIKeySet{{Policy: "ns/shop", Keys: []*pushv1.APIKey{{Hash: hash[:], Id: "paul", Claims: map[string]string{"plan": "gold"}}}}},
		KeySets: []*pushv1.KeySet{
			{Policy: "ns/shop", Issuer: issuer, Jwks: set(tb, map[string]any{"rsa": k.rsa.Public(), "ec": k.ec.Public(), "ed": k.ed.Public()})},
			{Policy: "ns/shop", Issuer: secret, Jwks: set(tb, map[string]any{"oct": k.oct})},
		},
	}, p)
}

// attempt is a request, and what becomes of it. says and hides are looked for in the answer's body: for the path /who that
// is the caller's identity, else the request as the application got it.
type attempt struct {
	from    string // "" = a trusted proxy
	request string // the lines after Host, or the whole where it starts with an upper-case method
	status  int    // 0 = 429, which names the caller
	says    string
	hides   string
}

func (a attempt) bytes() string {
	for _, method := range []string{"GET ", "POST ", "CONNECT ", "OPTIONS "} {
		if strings.HasPrefix(a.request, method) {
			return a.request
		}
	}
	return "GET /who HTTP/1.1\r\nHost: shop.example\r\n" + a.request + "\r\n"
}

func to(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: shop.example\r\n\r\n" }

func through(lines string) string {
	return "GET /through HTTP/1.1\r\nHost: shop.example\r\n" + lines + "\r\n"
}

func post(lines, body string) string {
	return "POST /through HTTP/1.1\r\nHost: shop.example\r\n" + lines + "\r\n" + body
}

func bearer(token string) string { return "Authorization: Bearer " + token + "\r\n" }

func TestNobodyPassesForAnother(t *testing.T) {
	t.Parallel()
	keys := newKeyring(t)
	var mu sync.Mutex
	asked := map[string]int{}
	guard := newGuard(t, callers(t, keys), func(o *guardOptions) {
		o.refresh = func(_, _, keyID string) {
			mu.Lock()
			defer mu.Unlock()
			asked[keyID]++
		}
	})
	address := serve(t, guard, mirror(t))
	for name, a := range attempts(t, keys) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, want := a.from, a.status
			if from == "" {
				from = proxyAt
			}
			if want == 0 {
				want = 429
			}
			status, _, text := raw(t, from, address, a.bytes())
			exact := a.status == 0 && text != a.says
			if status != want || exact || !strings.Contains(text, a.says) || a.hides != "" && strings.Contains(text, a.hides) {
				t.Errorf("%d %q; want %d, with %q and without %q", status, text, want, a.says, a.hides)
			}
		})
	}
	t.Cleanup(func() {
		// "rsa" and "oct" are known of another issuer than the token's.
		if got := slices.Sorted(maps.Keys(asked)); !slices.Equal(got, []string{"oct", "rsa", "unknown"}) {
			t.Errorf("asked for the keys %v, want those that were unknown", got)
		}
	})
}

func attempts(t *testing.T, k *keyring) map[string]attempt {
	t.Helper()
	all := map[string]attempt{}
	for _, part := range []map[string]attempt{addresses(), forwarded(), trusted(), apiKeys(), tokens(t, k), smuggling(), paths()} {
		maps.Copy(all, part)
	}
	if len(all) < 60 {
		t.Fatalf("only %d attempts", len(all))
	}
	return all
}

func addresses() map[string]attempt {
	xff := func(value string) string { return "X-Forwarded-For: " + value + "\r\n" }
	return map[string]attempt{
		"no header":                            {request: "", says: "ip|127.0.0.1"},
		"one address":                          {request: xff("198.51.100.7"), says: "ip|198.51.100.7"},
		"a stranger's header":                  {from: stranger, request: xff("198.51.100.7"), says: "ip|127.0.0.9"},
		"a stranger names a proxy":             {from: stranger, request: xff("10.1.1.1"), says: "ip|127.0.0.9"},
		"an address prepended":                 {request: xff("1.1.1.1, 198.51.100.7"), says: "ip|198.51.100.7"},
		"an address on a line before":          {request: xff("1.1.1.1") + xff("198.51.100.7"), says: "ip|198.51.100.7"},
		"through two proxies":                  {request: xff("198.51.100.7, 10.1.1.1"), says: "ip|198.51.100.7"},
		"prepended through two proxies":        {request: xff("1.1.1.1, 198.51.100.7, 10.1.1.1"), says: "ip|198.51.100.7"},
		"prepended proxies":                    {request: xff("10.9.9.9, 198.51.100.7, 10.1.1.1"), says: "ip|198.51.100.7"},
		"nothing but proxies":                  {request: xff("10.2.2.2, 10.1.1.1"), says: "ip|10.2.2.2"},
		"a proxy in IPv4-mapped notation":      {request: xff("198.51.100.7, 192.0.2.44"), says: "ip|198.51.100.7"},
		"a proxy of IPv6":                      {request: xff("198.51.100.7, 2001:db8:ffff::1"), says: "ip|198.51.100.7"},
		"IPv4 with a port":                     {request: xff("198.51.100.7:4711"), says: "ip|198.51.100.7"},
		"IPv6":                                 {request: xff("2001:db8::1"), says: "ip|2001:db8::/64"},
		"IPv6 in brackets":                     {request: xff("[2001:db8::1]"), says: "ip|2001:db8::/64"},
		"IPv6 with a port":                     {request: xff("[2001:db8::1]:4711"), says: "ip|2001:db8::/64"},
		"IPv6 with a zone":                     {request: xff("fe80::1%eth0"), says: "ip|fe80::/64"},
		"IPv6 of another host in one net":      {request: xff("2001:db8:0:0:ffff:ffff:ffff:ffff"), says: "ip|2001:db8::/64"},
		"IPv4-mapped IPv6":                     {request: xff("::ffff:198.51.100.7"), says: "ip|198.51.100.7"},
		"IPv4-mapped IPv6 in hexadecimal":      {request: xff("::ffff:c633:6407"), says: "ip|198.51.100.7"},
		"half a bracket":                       {request: xff("[2001:db8::1"), says: "ip|127.0.0.1"},
		"junk":                                 {request: xff("unknown"), says: "ip|127.0.0.1"},
		"junk behind a proxy":                  {request: xff("198.51.100.7, junk, 10.1.1.1"), says: "ip|10.1.1.1"},
		"an octal number":                      {request: xff("198.051.100.7"), says: "ip|127.0.0.1"},
		"a number alone":                       {request: xff("3325256711"), says: "ip|127.0.0.1"},
		"nothing":                              {request: xff(""), says: "ip|127.0.0.1"},
		"nothing at the end":                   {request: xff("198.51.100.7, "), says: "ip|127.0.0.1"},
		"spaces and tabs":                      {request: xff("1.1.1.1,\t 198.51.100.7 \t"), says: "ip|198.51.100.7"},
		"a folded line":                        {request: "X-Forwarded-For: 1.1.1.1\r\n 198.51.100.7\r\n", says: "ip|127.0.0.1"},
		"too many hops":                        {request: xff("1.1.1.1" + strings.Repeat(", 10.0.0.1", 100)), says: "ip|10.0.0.1"},
		"lower case":                           {request: "x-forwarded-for: 198.51.100.7\r\n", says: "ip|198.51.100.7"},
		"underscores":                          {request: "X_Forwarded_For: 198.51.100.7\r\n", says: "ip|127.0.0.1"},
		"underscores don't reach the app":      {request: through("X_Forwarded-For: 198.51.100.7\r\n"), status: 200, hides: "198.51.100.7"},
		"a space before the colon":             {request: "X-Forwarded-For : 198.51.100.7\r\n", status: 400},
		"other headers of the kind":            {request: "X-Real-IP: 1.1.1.1\r\nTrue-Client-IP: 1.1.1.1\r\nX-Client-IP: 1.1.1.1\r\nClient-IP: 1.1.1.1\r\n", says: "ip|127.0.0.1"},
		"the app sees the chain extended":      {request: through(xff("1.1.1.1, 198.51.100.7")), status: 200, says: "X-Forwarded-For: 1.1.1.1, 198.51.100.7, 127.0.0.1\n"},
		"Connection can't strip the chain":     {request: "Connection: close, X-Forwarded-For\r\n" + xff("198.51.100.7"), says: "ip|198.51.100.7"},
		"nor does the app miss it":             {request: through("Connection: X-Forwarded-For, x-forwarded-proto\r\nX-Forwarded-Proto: https\r\n" + xff("198.51.100.7")), status: 200, says: "X-Forwarded-For: 198.51.100.7, 127.0.0.1\nX-Forwarded-Host: shop.example\nX-Forwarded-Proto: https\n"},
		"Connection may strip what tells none": {request: through("Connection: X-Mine\r\nX-Mine: 1\r\n"), status: 200, hides: "X-Mine"},
	}
}

func forwarded() map[string]attempt {
	f := func(value string) string { return "Forwarded: " + value + "\r\n" }
	return map[string]attempt{
		"forwarded":                            {request: f("for=198.51.100.7"), says: "ip|198.51.100.7"},
		"forwarded, a stranger's":              {from: stranger, request: f("for=198.51.100.7"), says: "ip|127.0.0.9"},
		"forwarded, quoted with a port":        {request: f(`For="198.51.100.7:80";proto=http;by=10.0.0.1`), says: "ip|198.51.100.7"},
		"forwarded, quoted IPv6":               {request: f(`proto=https;for="[2001:db8::1]:47011"`), says: "ip|2001:db8::/64"},
		"forwarded, an obfuscated port":        {request: f(`for="198.51.100.7:_x"`), says: "ip|198.51.100.7"},
		"forwarded, unknown":                   {request: f("for=unknown"), says: "ip|127.0.0.1"},
		"forwarded, an obfuscated name":        {request: f("for=_gazonk"), says: "ip|127.0.0.1"},
		"forwarded, no for":                    {request: f("proto=https"), says: "ip|127.0.0.1"},
		"forwarded, prepended":                 {request: f("for=1.1.1.1, for=198.51.100.7"), says: "ip|198.51.100.7"},
		"forwarded, on a line before":          {request: f("for=1.1.1.1") + f("for=198.51.100.7"), says: "ip|198.51.100.7"},
		"forwarded, an open quote prepended":   {request: f(`for="1.1.1.1, for=198.51.100.7`), says: "ip|198.51.100.7"},
		"forwarded, an element in quotes":      {request: f(`host="a, for=1.1.1.1", for=198.51.100.7`), says: "ip|198.51.100.7"},
		"forwarded, through two proxies":       {request: f("for=198.51.100.7, for=10.1.1.1"), says: "ip|198.51.100.7"},
		"forwarded and X-Forwarded-For agree":  {request: f("for=198.51.100.7") + "X-Forwarded-For: 198.51.100.7\r\n", says: "ip|198.51.100.7"},
		"forwarded and X-Forwarded-For differ": {request: f("for=1.1.1.1") + "X-Forwarded-For: 198.51.100.7\r\n", says: "ip|127.0.0.1"},
		"forwarded is extended for the app":    {request: through(f("for=198.51.100.7")), status: 200, says: "Forwarded: for=198.51.100.7, for=127.0.0.1\n"},
	}
}

func trusted() map[string]attempt {
	return map[string]attempt{
		"trusted header":                           {request: "X-Auth-User: ann\r\nX-Auth-Plan: gold\r\n", says: "header|ann plan gold"},
		"trusted header, a stranger's":             {from: stranger, request: "X-Auth-User: ann\r\n", says: "ip|127.0.0.9"},
		"trusted header, a stranger's alias":       {from: stranger, request: "x-AUTH-user: ann\r\nX-Forwarded-For: 127.0.0.1\r\n", says: "ip|127.0.0.9"},
		"trusted header, twice":                    {request: "X-Auth-User: ann\r\nX-Auth-User: root\r\n", says: "ip|127.0.0.1 invalid"},
		"trusted claim, twice":                     {request: "X-Auth-User: ann\r\nX-Auth-Plan: free\r\nX-Auth-Plan: gold\r\n", says: "ip|127.0.0.1 invalid"},
		"trusted header, empty":                    {request: "X-Auth-User:\r\n", says: "ip|127.0.0.1"},
		"trusted header, with the kind's mark":     {request: "X-Auth-User: x|apikey|paul\r\n", says: "header|x|apikey|paul"},
		"trusted header, hidden from the app":      {from: stranger, request: through("X-Auth-User: ann\r\nX-Auth-Plan: gold\r\n"), status: 200, hides: "Auth"},
		"trusted header, underscores hidden":       {from: stranger, request: through("X_Auth_User: ann\r\nX-Auth_User: ann\r\n"), status: 200, hides: "ann"},
		"trusted header, proxy's underscores":      {request: through("X_Auth_User: ann\r\n"), status: 200, hides: "ann"},
		"trusted header, as a trailer":             {from: stranger, request: post("Transfer-Encoding: chunked\r\nTrailer: X-Auth-User, X-Sum\r\n", "1\r\na\r\n0\r\nX-Auth-User: ann\r\nX-Sum: 7\r\n\r\n"), status: 200, says: "X-Sum: 7", hides: "ann"},
		"trusted header, as a trailer unannounced": {from: stranger, request: post("Transfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\nX-Auth-User: ann\r\n\r\n"), status: 200, hides: "ann"},
		"trusted header, Connection can't strip":   {request: through("Connection: X-Auth-User\r\nX-Auth-User: ann\r\n"), status: 200, says: "X-Auth-User: ann"},
		"trusted header, nor an empty option":      {request: through("Connection: ,x-auth-user,\r\nX-Auth-User: ann\r\n"), status: 200, says: "X-Auth-User: ann"},
	}
}

func apiKeys() map[string]attempt {
	return map[string]attempt{
		"API key":                              {request: "X-API-Key: good-key\r\n", says: "apikey|paul plan gold"},
		"API key, with spaces":                 {request: "X-API-Key:    good-key  \r\n", says: "apikey|paul plan gold"},
		"API key, wrong":                       {request: "X-API-Key: bad-key\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, its beginning":               {request: "X-API-Key: good\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, in upper case":               {request: "X-API-Key: GOOD-KEY\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, empty":                       {request: "X-API-Key:\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, twice":                       {request: "X-API-Key: good-key\r\nX-API-Key: bad-key\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, with another's name":         {from: stranger, request: "X-API-Key: good-key\r\nX-Auth-User: root\r\n", says: "apikey|paul plan gold"},
		"API key, wrong, beside a name":        {request: "X-API-Key: bad-key\r\nX-Auth-User: ann\r\n", says: "ip|127.0.0.1 invalid"},
		"API key, underscores":                 {request: "X_API_Key: good-key\r\n", says: "ip|127.0.0.1"},
		"API key, underscores hidden from app": {request: through("X_API_Key: good-key\r\n"), status: 200, hides: "good-key"},
		"API key, Connection can't strip":      {request: through("Connection: x-api-key\r\nX-API-Key: good-key\r\n"), status: 200, says: "X-Api-Key: good-key"},
	}
}

func tokens(t *testing.T, k *keyring) map[string]attempt {
	t.Helper()
	rs := func(header, payload fields) string { return sign(t, jwa.RS256(), k.rsa, header, payload) }
	good := rs(fields{"kid": "rsa"}, claims(nil))
	der, err := x509.MarshalPKIXPublicKey(k.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	own, err := jwk.Import(k.other.Public())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	changed := strings.Split(rs(fields{"kid": "rsa"}, claims(fields{"sub": "root"})), ".")
	ann, invalid := "jwt|"+issuer+"|ann", "ip|127.0.0.1 invalid"
	hour := func(n int) int64 { return time.Now().Add(time.Duration(n) * time.Hour).Unix() }
	return map[string]attempt{
		"token, RS256":                    {request: bearer(good), says: ann},
		"token, PS256":                    {request: bearer(sign(t, jwa.PS256(), k.rsa, fields{"kid": "rsa"}, claims(nil))), says: ann},
		"token, ES256":                    {request: bearer(sign(t, jwa.ES256(), k.ec, fields{"kid": "ec"}, claims(nil))), says: ann},
		"token, EdDSA":                    {request: bearer(sign(t, jwa.EdDSA(), k.ed, fields{"kid": "ed"}, claims(nil))), says: ann},
		"token, HS256 of a secret":        {request: bearer(sign(t, jwa.HS256(), k.oct, fields{"kid": "oct"}, claims(fields{"iss": secret}))), says: "jwt|" + secret + "|ann"},
		"token, no kid":                   {request: bearer(rs(nil, claims(nil))), says: ann},
		"token, several audiences":        {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"aud": []string{"a", "shop"}}))), says: ann},
		"token, bearer in lower case":     {request: "Authorization: bearer " + good + "\r\n", says: ann},
		"token, a claim":                  {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"plan": "gold"}))), says: ann + " plan gold"},
		"token, a bar in the id":          {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"sub": "x|y"}))), says: "jwt|" + issuer + "|x|y"},
		"token, alg none":                 {request: bearer(forge(t, fields{"alg": "none"}, claims(nil), nil)), says: invalid},
		"token, alg NoNe":                 {request: bearer(forge(t, fields{"alg": "NoNe", "kid": "rsa"}, claims(nil), nil)), says: invalid},
		"token, alg none, signed":         {request: bearer(forge(t, fields{"alg": "none", "kid": "rsa"}, claims(nil), []byte("x"))), says: invalid},
		"token, no alg":                   {request: bearer(forge(t, fields{"kid": "rsa"}, claims(nil), nil)), says: invalid},
		"token, signature cut off":        {request: bearer(parts[0] + "." + parts[1] + "."), says: invalid},
		"token, two parts":                {request: bearer(parts[0] + "." + parts[1]), says: invalid},
		"token, five parts":               {request: bearer(good + ".a.b"), says: invalid},
		"token, another's payload":        {request: bearer(parts[0] + "." + changed[1] + "." + parts[2]), says: invalid},
		"token, HS256 by the public PEM":  {request: bearer(forge(t, fields{"alg": "HS256", "kid": "rsa"}, claims(nil), public)), says: invalid},
		"token, HS256 by the public DER":  {request: bearer(forge(t, fields{"alg": "HS256", "kid": "rsa"}, claims(nil), der)), says: invalid},
		"token, HS256 by the modulus":     {request: bearer(forge(t, fields{"alg": "HS256", "kid": "rsa"}, claims(nil), k.rsa.N.Bytes())), says: invalid},
		"token, HS256 by nothing":         {request: bearer(forge(t, fields{"alg": "HS256"}, claims(fields{"iss": secret}), []byte{})), says: invalid},
		"token, another key, known kid":   {request: bearer(sign(t, jwa.RS256(), k.other, fields{"kid": "rsa"}, claims(nil))), says: invalid},
		"token, another key, unknown kid": {request: bearer(sign(t, jwa.RS256(), k.other, fields{"kid": "unknown"}, claims(nil))), says: invalid},
		"token, a known key, unknown kid": {request: bearer(rs(fields{"kid": "unknown"}, claims(nil))), says: invalid},
		"token, brings its key":           {request: bearer(sign(t, jwa.RS256(), k.other, fields{"jwk": own}, claims(nil))), says: invalid},
		"token, says where its key is":    {request: bearer(sign(t, jwa.RS256(), k.other, fields{"jku": "http://127.0.0.1:1/", "kid": "rsa"}, claims(nil))), says: invalid},
		"token, unknown critical header":  {request: bearer(rs(fields{"kid": "rsa", "crit": []string{"x"}, "x": 1}, claims(nil))), says: invalid},
		"token, issuer's key for another": {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"iss": secret}))), says: invalid},
		"token, secret for another":       {request: bearer(sign(t, jwa.HS256(), k.oct, fields{"kid": "oct"}, claims(nil))), says: invalid},
		"token, unknown issuer":           {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"iss": "https://evil.example"}))), says: invalid},
		"token, no issuer":                {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"iss": nil}))), says: invalid},
		"token, two issuers":              {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"iss": []string{issuer}}))), says: invalid},
		"token, another audience":         {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"aud": "bank"}))), says: invalid},
		"token, no audience":              {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"aud": nil}))), says: invalid},
		"token, expired":                  {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"exp": hour(-1)}))), says: invalid},
		"token, never expires":            {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"exp": nil}))), says: invalid},
		"token, expiry as text":           {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"exp": "9999999999"}))), says: invalid},
		"token, expiry beyond all time":   {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"exp": 1e300}))), says: invalid},
		"token, not yet valid":            {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"nbf": hour(1)}))), says: invalid},
		"token, valid since text":         {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"nbf": "soon"}))), says: invalid},
		"token, no subject":               {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"sub": nil}))), says: invalid},
		"token, subject no text":          {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"sub": 7}))), says: invalid},
		"token, too long":                 {request: bearer(rs(fields{"kid": "rsa"}, claims(fields{"pad": strings.Repeat("x", 16<<10)}))), says: invalid},
		"token, none behind Bearer":       {request: "Authorization: Bearer\r\n", says: invalid},
		"token, two lines":                {request: bearer(good) + bearer(good), says: invalid},
		"token, Basic on a line before":   {request: "Authorization: Basic eDp5\r\n" + bearer(good), says: invalid},
		"token, two in a line":            {request: "Authorization: Bearer " + good + ", Bearer " + good + "\r\n", says: invalid},
		"token, Basic alone":              {request: "Authorization: Basic eDp5\r\n", says: "ip|127.0.0.1"},
		"token, beside a wrong key":       {request: bearer(good) + "X-API-Key: bad-key\r\n", says: ann},
		"token, wrong, beside a good key": {request: bearer("a.b.c") + "X-API-Key: good-key\r\n", says: invalid},
	}
}

func smuggling() map[string]attempt {
	const hidden = "GET /hidden HTTP/1.1\r\nHost: shop.example\r\n\r\n"
	return map[string]attempt{
		"smuggling, length and chunked":         {request: post("Content-Length: 60\r\nTransfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\n\r\n"), status: 200, says: "body: a\n", hides: "Content-Length"},
		"smuggling, chunked and length":         {request: post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "1\r\na\r\n0\r\n\r\n"), status: 200, says: "body: a\n", hides: "hidden"},
		"smuggling, two lengths":                {request: post("Content-Length: 1\r\nContent-Length: 60\r\n", "a"+hidden), status: 400},
		"smuggling, two lengths in a line":      {request: post("Content-Length: 1, 60\r\n", "a"+hidden), status: 400},
		"smuggling, a signed length":            {request: post("Content-Length: +1\r\n", "a"), status: 400},
		"smuggling, a hexadecimal length":       {request: post("Content-Length: 0x1\r\n", "a"), status: 400},
		"smuggling, a length below zero":        {request: post("Content-Length: -1\r\n", "a"), status: 400},
		"smuggling, an unknown coding":          {request: post("Transfer-Encoding: xchunked\r\n", "1\r\na\r\n0\r\n\r\n"), status: 501},
		"smuggling, a coding behind chunked":    {request: post("Transfer-Encoding: chunked, identity\r\n", "1\r\na\r\n0\r\n\r\n"), status: 501},
		"smuggling, chunked twice":              {request: post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\n\r\n"), status: 501},
		"smuggling, a tab in the coding":        {request: post("Transfer-Encoding: \x0bchunked\r\n", "1\r\na\r\n0\r\n\r\n"), status: 400},
		"smuggling, a space before the colon":   {request: post("Transfer-Encoding : chunked\r\n", "1\r\na\r\n0\r\n\r\n"), status: 400},
		"smuggling, a wrong chunk size":         {request: post("Transfer-Encoding: chunked\r\n", "0x1\r\na\r\n0\r\n\r\n"), status: 400},
		"smuggling, a null in a header":         {request: post("X-A: a\x00b\r\nContent-Length: 1\r\n", "a"), status: 400},
		"smuggling, a carriage return":          {request: "GET /who HTTP/1.1\r\nHost: shop.example\r\nX-A: a\rX-Auth-User: ann\r\n\r\n", status: 400},
		"smuggling, two hosts":                  {request: "Host: other.example\r\n", status: 400},
		"smuggling, no host":                    {request: "GET /who HTTP/1.1\r\n\r\n", status: 400},
		"smuggling, the target's host counts":   {request: "GET http://other.example/through HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 200, says: "GET /through\nHost: other.example\n"},
		"smuggling, CONNECT":                    {request: "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example:80\r\n\r\n", status: 405},
		"smuggling, a target that is no path":   {request: "GET shop:who HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 400},
		"smuggling, a target without a slash":   {request: "GET who HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 400},
		"smuggling, an asterisk":                {request: "OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 200},
		"smuggling, an upgrade to HTTP/2":       {request: through("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), status: 200, hides: "h2c"},
		"smuggling, settings alone":             {request: through("HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), status: 200, hides: "Settings"},
		"smuggling, too many headers":           {request: strings.Repeat("X-A: a\r\n", 2000), status: 431},
		"smuggling, headers too long":           {request: "X-A: " + strings.Repeat("a", 80<<10) + "\r\n", status: 431},
		"smuggling, proxy headers stay off":     {request: through("Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nTE: gzip\r\n"), status: 200, hides: "eep-"},
		"smuggling, the connection is the hop":  {request: through("Connection: close, TE\r\nTE: trailers\r\n"), status: 200, says: "Te: trailers"},
		"smuggling, a version of HTTP":          {request: "GET /who HTTP/3.0\r\nHost: shop.example\r\n\r\n", status: 505},
		"smuggling, a letter in the version":    {request: "GET /who HTTP/1.x\r\nHost: shop.example\r\n\r\n", status: 400},
		"smuggling, a space in the target":      {request: "GET /who /x HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 400},
		"smuggling, a control character in it":  {request: "GET /who\x01 HTTP/1.1\r\nHost: shop.example\r\n\r\n", status: 400},
		"smuggling, an escape that is none":     {request: to("/who%zz"), status: 400},
		"smuggling, HTTP/1.0 is limited too":    {request: "GET /admin HTTP/1.0\r\n\r\n", says: "admin rule"},
		"smuggling, an overridden method stays": {request: through("X-HTTP-Method-Override: DELETE\r\n"), status: 200, says: "GET /through"},
	}
}

func paths() map[string]attempt {
	all := map[string]attempt{}
	for _, path := range []string{
		"/admin", "/admin/", "/admin/x", "/admin?/../x", "//admin", "///admin//x", "/./admin", "/admin/.", "/x/../admin", "/../admin",
		"/%61dmin", "/%61%64%6D%69%6e", "/x/%2e%2e/admin", "/x/%2E./admin", "/x/.%2e/admin", "/%2e/admin", "/x/y/../../admin", "/x%00/../admin",
		"/x/..//admin", "http://shop.example//admin",
	} {
		all["path, the rule holds for "+path] = attempt{request: to(path), says: "admin rule"}
	}
	for path, upstream := range map[string]string{
		"/ADMIN": "/ADMIN", "/administrator": "/administrator", "/admin/../x": "/admin/../x", "/admin/%2e%2e/x": "/admin/%2e%2e/x",
		"/%2561dmin": "/%2561dmin", "/admin%2Fx": "/admin%2Fx", "/x/..%2fadmin": "/x/..%2fadmin", "/x/..;/admin": "/x/..;/admin", "/admin;x": "/admin;x",
		`/x\admin`: "/x%5Cadmin", "/x#/../admin2": "/x%23/../admin2", "/a%2Fb|c": "/a%2Fb%7Cc", "/x?a;b=%zz&c": "/x?a;b=%zz&c", "/x//y/./z": "/x//y/./z",
		"/%C3%A4": "/%C3%A4", "/\xc3\xa4": "/%C3%A4", "/x?": "/x?", "/a+b%20c": "/a+b%20c",
	} {
		all["path, the application gets "+path] = attempt{request: to(path), status: 200, says: "GET " + upstream + "\n"}
	}
	return all
}
