// Package redis keeps counters in Redis or Valkey, shared by every process that uses the same server. One script decides
// all checks of a request in one step, by the server's clock.
//
// It decides exactly as package memory does; package model says what both must do.
package redis

import (
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

//go:embed decide.lua
var decideSource string

// ErrReply tells that the server answered with something that the script does not return.
var ErrReply = errors.New("unexpected reply of the script")

const (
	fieldsPerCheck = 2
	fieldsPerLimit = 5
	never          = -1
)

// encode lists the script's KEYS and ARGV.
func encode(checks []limiter.Check) (keys []string, args []any) {
	args = append(args, len(checks))
	for i := range checks {
		c := &checks[i]
		r := c.Rule
		args = append(args, letter(r.Algorithm), c.Cost, flag(r.Shadow), flag(r.CountRejected),
			r.Queue.MaxLength, r.Queue.MaxWait.Microseconds(), len(r.Limits))
		for j, l := range r.Limits {
			keys = append(keys, string(c.CounterKey(nil, j)))
			args = append(args, l.Requests, l.Capacity(), l.Window.Microseconds())
		}
	}
	return keys, args
}

// decode turns the script's reply into one result a check.
func decode(checks []limiter.Check, reply any) ([]limiter.Result, error) {
	numbers, err := integers(reply)
	if err != nil {
		return nil, err
	}
	results := make([]limiter.Result, len(checks))
	for i := range checks {
		limits := checks[i].Rule.Limits
		need := fieldsPerCheck + fieldsPerLimit*len(limits)
		if len(numbers) < need {
			return nil, fmt.Errorf("%w: too short", ErrReply)
		}
		results[i] = result(limits, numbers[:need])
		numbers = numbers[need:]
	}
	if len(numbers) != 0 {
		return nil, fmt.Errorf("%w: too long", ErrReply)
	}
	return results, nil
}

func result(limits []limiter.Limit, n []int64) limiter.Result {
	r := limiter.Result{
		Allowed: n[0] == 1, Source: limiter.FromStore, Delay: micros(n[1]),
		Limits: make([]limiter.State, len(limits)),
	}
	for j := range limits {
		f := n[fieldsPerCheck+fieldsPerLimit*j:]
		s := limiter.State{
			Allowed: f[0] == 1, Limit: limits[j].Requests,
			Remaining: f[1], Current: f[2], ResetAfter: micros(f[3]),
		}
		if !r.Allowed {
			s.RetryAfter = micros(f[4])
			r.RetryAfter = max(r.RetryAfter, s.RetryAfter)
		}
		r.Limits[j] = s
	}
	return r
}

func integers(reply any) ([]int64, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: %T", ErrReply, reply)
	}
	numbers := make([]int64, len(list))
	for i, v := range list {
		if numbers[i], ok = v.(int64); !ok {
			return nil, fmt.Errorf("%w: element %d is %T", ErrReply, i, v)
		}
	}
	return numbers, nil
}

func letter(a limiter.Algorithm) string { return string("?tlfsc"[a]) }

func flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

func micros(us int64) time.Duration {
	if us == never {
		return limiter.Never
	}
	return time.Duration(us) * time.Microsecond
}
