package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/limiter"
)

var (
	//go:embed lease.lua
	lease       string
	leaseSource = algorithms + lease
)

const (
	wordsPerLease  = 13
	wordsPerTerms  = 4
	wordsPerAsk    = 2
	fieldsPerGrant = 3
	fieldsPerState = 4
)

// Lease implements limiter.Lessor in one round trip, which it shares with whatever else waits for the server.
func (s *Store) Lease(c *limiter.Claim) (limiter.Grant, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	sent := &call{checks: []limiter.Check{{Rule: c.Rule, Key: c.Key}}, claim: c}
	l, err := s.lane(ctx, &sent.checks[0])
	if err == nil {
		err = l.lone(sent)
	}
	if err != nil {
		return limiter.Grant{}, err
	}
	select {
	case <-sent.done:
		if sent.err != nil {
			return limiter.Grant{}, sent.err
		}
		return readGrant(c, sent.reply)
	case <-ctx.Done():
		return limiter.Grant{}, fmt.Errorf("lease from the store: %w", context.Cause(ctx))
	}
}

// claim lists the words of a call; whole sends the source, which makes the server know it.
func (s script) claim(c *limiter.Claim, whole bool) []any {
	check := limiter.Check{Rule: c.Rule, Key: c.Key}
	words := make([]any, 0, wordsPerLease+wordsPerTerms*len(c.Rule.Limits)+wordsPerAsk*len(c.Asks))
	if whole {
		words = append(words, "eval", s.source)
	} else {
		words = append(words, "evalsha", s.sha)
	}
	words = append(words, 1+len(c.Rule.Limits), check.LeasesKey(nil))
	words = appendKeys(words, &check)
	words = append(words, c.Holder, c.Used, c.LastUse, c.Kept, c.Want, c.Life.Microseconds(),
		letter(c.Rule.Algorithm), len(c.Rule.Limits))
	for _, l := range c.Rule.Limits {
		words = append(words, l.Requests, l.Capacity(), l.Window.Microseconds())
	}
	words = append(words, len(c.Asks))
	for _, a := range c.Asks {
		words = append(words, a.Cost, a.Callers)
	}
	return words
}

func readGrant(c *limiter.Claim, reply string) (limiter.Grant, error) {
	var n []int64
	for word := range strings.FieldsSeq(reply) {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return limiter.Grant{}, fmt.Errorf("%w: %w", ErrReply, err)
		}
		n = append(n, number)
	}
	asks, limits := len(c.Asks), c.Rule.Limits
	if len(n) != fieldsPerGrant+asks+fieldsPerState*len(limits) {
		return limiter.Grant{}, fmt.Errorf("%w: %d numbers", ErrReply, len(n))
	}
	g := limiter.Grant{
		Now: n[0], Kept: n[1] == 1, Units: n[2],
		Served: n[fieldsPerGrant : fieldsPerGrant+asks], Limits: make([]limiter.State, len(limits)),
	}
	for i := range limits {
		f := n[fieldsPerGrant+asks+fieldsPerState*i:]
		g.Limits[i] = limiter.State{
			Allowed: f[3] == 0, Limit: limits[i].Requests,
			Remaining: f[0], Current: f[1], ResetAfter: micros(f[2]), RetryAfter: micros(f[3]),
		}
	}
	return g, nil
}
