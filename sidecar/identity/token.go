package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	maxToken   = 16 << 10
	maxCached  = 10_000
	clockSkew  = time.Minute
	maxKeySets = 1 << 20
	maxKeyID   = 256 // of one that is asked for
)

// errToken is why a token is not valid; only its kind is looked at.
var errToken = errors.New("invalid token")

// tokenSource verifies the tokens (RFC 7519) of one issuer.
type tokenSource struct {
	from      *source
	issuer    string
	audiences []string
	idClaim   string
	keys      jwk.Set
	clock     clock.Clock
	refresh   Refresh
	verified  *cache
}

func newTokenSource(j *pushv1.Identity_JWT, set []byte, c clock.Clock, refresh Refresh) (*tokenSource, error) {
	t := &tokenSource{
		from: newSource(j.GetFrom()), issuer: j.GetIssuer(), audiences: j.GetAudiences(), idClaim: j.GetIdClaim(),
		keys: jwk.NewSet(), clock: c, refresh: refresh, verified: &cache{},
	}
	if len(set) == 0 {
		return t, nil
	}
	if len(set) > maxKeySets {
		return nil, fmt.Errorf("keys of issuer %s: longer than %d bytes", j.GetIssuer(), maxKeySets)
	}
	keys, err := jwk.Parse(set)
	if err != nil {
		return nil, fmt.Errorf("keys of issuer %s: %w", j.GetIssuer(), err)
	}
	t.keys = keys
	return t, nil
}

// byToken asks the source whose issuer the presented token names.
func (r *Resolver) byToken(h http.Header, caller *Caller) bool {
	presented := false
	for _, t := range r.tokens {
		token, found := t.from.credential(h)
		if !found {
			continue
		}
		presented = true
		claims, err := t.verify(token)
		if errors.Is(err, errOtherIssuer) {
			continue
		}
		id, _ := claims[t.idClaim].(string)
		if err != nil || id == "" {
			break
		}
		caller.Authenticated, caller.ID, caller.Claims = true, id, claims
		caller.Key = joinKey("jwt", t.issuer, id)
		return true
	}
	caller.Invalid = presented
	return presented
}

var errOtherIssuer = fmt.Errorf("%w: of another issuer", errToken)

// verify checks the signature with a key of the issuer, by an algorithm that fits the key's type, and the claims.
func (t *tokenSource) verify(token string) (map[string]any, error) {
	if len(token) > maxToken {
		return nil, fmt.Errorf("%w: longer than %d bytes", errToken, maxToken)
	}
	now := t.clock.Now()
	hash := sha256.Sum256([]byte(token))
	if claims, found := t.verified.get(hash, now); found {
		return claims, nil
	}
	header, payload, err := peek(token)
	if err != nil {
		return nil, err
	}
	if iss, _ := payload["iss"].(string); iss != t.issuer {
		return nil, errOtherIssuer
	}
	if err := t.checkSignature(token, header); err != nil {
		return nil, err
	}
	expires, err := t.checkClaims(payload, now)
	if err != nil {
		return nil, err
	}
	t.verified.put(hash, payload, expires)
	return payload, nil
}

// checkSignature takes the key that the token names; where it names none, each key is tried.
func (t *tokenSource) checkSignature(token string, header map[string]any) error {
	kid, named := header["kid"].(string)
	if _, known := t.keys.LookupKeyID(kid); named && !known {
		if t.refresh != nil && len(kid) <= maxKeyID {
			t.refresh(t.issuer, kid)
		}
		return fmt.Errorf("%w: of an unknown key", errToken)
	}
	if _, extended := header["crit"]; extended {
		return fmt.Errorf("%w: with extensions", errToken)
	}
	_, err := jws.Verify([]byte(token), jws.WithCompact(),
		jws.WithKeySet(t.keys, jws.WithRequireKid(named), jws.WithInferAlgorithmFromKey(true)))
	if err != nil {
		return fmt.Errorf("%w: %w", errToken, err)
	}
	return nil
}

// checkClaims returns when the token ends. A token without an end is not accepted.
func (t *tokenSource) checkClaims(claims map[string]any, now time.Time) (time.Time, error) {
	exp, found := numericDate(claims["exp"])
	if !found || !now.Before(exp.Add(clockSkew)) {
		return time.Time{}, fmt.Errorf("%w: expired, or without exp", errToken)
	}
	nbf, valid := numericDate(claims["nbf"])
	if _, set := claims["nbf"]; set && (!valid || now.Add(clockSkew).Before(nbf)) {
		return time.Time{}, fmt.Errorf("%w: not yet valid", errToken)
	}
	if len(t.audiences) > 0 && !slices.ContainsFunc(audiences(claims["aud"]), func(a string) bool { return slices.Contains(t.audiences, a) }) {
		return time.Time{}, fmt.Errorf("%w: for another audience", errToken)
	}
	return exp.Add(clockSkew), nil
}

func audiences(claim any) []string {
	switch a := claim.(type) {
	case string:
		return []string{a}
	case []any:
		var list []string
		for _, v := range a {
			if s, ok := v.(string); ok {
				list = append(list, s)
			}
		}
		return list
	default:
		return nil
	}
}

func numericDate(claim any) (time.Time, bool) {
	n, ok := claim.(float64)
	if !ok || n < 0 || n > 1e12 {
		return time.Time{}, false
	}
	return time.Unix(int64(n), 0), true
}

// peek decodes a compact token's header and payload without believing them.
func peek(token string) (header, payload map[string]any, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, nil, fmt.Errorf("%w: not in compact form", errToken)
	}
	for i, into := range []*map[string]any{&header, &payload} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errToken, err)
		}
	}
	return header, payload, nil
}

// cache remembers tokens that were verified, by their hash, until they end. It is bounded: when it is full it forgets all.
type cache struct {
	mu     sync.RWMutex
	tokens map[[sha256.Size]byte]verified
}

type verified struct {
	claims  map[string]any
	expires time.Time
}

func (c *cache) get(hash [sha256.Size]byte, now time.Time) (map[string]any, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, found := c.tokens[hash]
	if !found || !now.Before(v.expires) {
		return nil, false
	}
	return v.claims, true
}

func (c *cache) put(hash [sha256.Size]byte, claims map[string]any, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens == nil || len(c.tokens) >= maxCached {
		c.tokens = map[[sha256.Size]byte]verified{}
	}
	c.tokens[hash] = verified{claims, expires}
}
