package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// The sample policy, its limits, and what stands in it for the key set.
const (
	samplePolicy   = "config/samples/ratelimit_v1alpha1_ratelimitpolicy.yaml"
	sampleJWKS     = `{"keys": []}`
	authenticated  = "authenticated"
	freeLimit      = 5
	knownLimit     = 10
	premiumLimit   = 20
	newKnownLimit  = 15
	callsOverLimit = 2
	sampleOldLimit = "{tier: authenticated, requests: 10, window: 10s}"
	sampleNewLimit = "{tier: authenticated, requests: 15, window: 10s}"
)

// sample reads the sample policy with the demo's own key set in it.
func (d *demo) sample() (string, error) {
	text, err := os.ReadFile(samplePolicy)
	if err != nil {
		return "", fmt.Errorf("read the sample policy: %w", err)
	}
	jwks, err := d.issuer.jwks()
	if err != nil {
		return "", err
	}
	return replaceOnce(string(text), sampleJWKS, jwks)
}

func replaceOnce(text, old, replacement string) (string, error) {
	if strings.Count(text, old) != 1 {
		return "", fmt.Errorf("the sample policy does not hold %q exactly once", old)
	}
	return strings.Replace(text, old, replacement, 1), nil
}

// bearer is a caller with a fresh token.
func (d *demo) bearer(subject, plan, tier string) (caller, error) {
	token, err := d.issuer.token(subject, plan, d.clock.Now())
	return caller{name: subject, tier: tier, credential: "token of " + subject, header: "Authorization", value: "Bearer " + token}, err
}

// tier is a caller, what the sample policy allows it in ten seconds, and how often it calls.
type tier struct {
	caller caller
	limit  int
}

func (d *demo) tiers() ([]tier, error) {
	ivy, err := d.bearer("ivy", "", authenticated)
	if err != nil {
		return nil, err
	}
	pia, err := d.bearer("pia", "premium", "premium")
	if err != nil {
		return nil, err
	}
	key := func(name, tier string) caller {
		return caller{name: name, tier: tier, credential: "API key of " + name, header: "X-API-Key", value: "sample-key-of-" + name}
	}
	return []tier{
		{caller{name: "anyone", tier: "anonymous", credential: "none"}, freeLimit},
		{key("ann", authenticated), knownLimit},
		{ivy, knownLimit},
		{key("paula", "premium"), premiumLimit},
		{pia, premiumLimit},
	}, nil
}

// showTiers calls as each tier does, two calls more than its limit, shows the table and checks it.
func (d *demo) showTiers(ctx context.Context, part, url string) error {
	tiers, err := d.tiers()
	if err != nil {
		return err
	}
	client := newClient()
	var tallies []tally
	for _, tier := range tiers {
		t, err := burst(ctx, client, url, tier.caller, tier.limit+callsOverLimit)
		if err != nil {
			return err
		}
		tallies = append(tallies, t)
	}
	d.out.block(table(tallies))
	for i, t := range tallies {
		d.report.expect(t.inOrder(tiers[i].limit),
			fmt.Sprintf("%s: %s by %s gets %d in 10 s, then 429", part, t.caller.tier, t.caller.credential, tiers[i].limit),
			"%s", t.statuses())
	}
	d.checkRefusals(part, tallies[0])
	return nil
}

// checkRefusals looks into the two refusals that seven calls against five in ten seconds bring.
func (d *demo) checkRefusals(part string, t tally) {
	good := true
	refused := t.with(http.StatusTooManyRequests)
	seen := make([]string, 0, len(refused))
	for _, a := range refused {
		count := int64(-1)
		if a.refusal.CurrentCount != nil {
			count = *a.refusal.CurrentCount
		}
		good = good && a.refusal.Limit == freeLimit && count == freeLimit && a.retryAfter != "" &&
			a.mediaType == "application/problem+json"
		seen = append(seen, fmt.Sprintf("limit %d, currentCount %d, Retry-After %q, %s", a.refusal.Limit, count, a.retryAfter, a.mediaType))
	}
	d.report.expect(good && len(refused) == callsOverLimit, part+": a 429 says the limit, the count and when to come again",
		"%s", strings.Join(seen, "; "))
}
