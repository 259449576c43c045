// Package redis keeps counters in Redis or Valkey, shared by every process that uses the same server. One script decides
// all checks of a request in one step, by the server's clock.
//
// It decides exactly as package memory does; package model says what both must do.
package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts so
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

// Every script begins with the algorithms.
var (
	//go:embed algorithms.lua
	algorithms string
	//go:embed decide.lua
	decide       string
	decideSource = algorithms + decide
)

// ErrReply tells that the server answered with something that the script does not return.
var ErrReply = errors.New("unexpected reply of the script")

const (
	wordsPerCall  = 4
	bytesPerCheck = 25
	bytesPerLimit = 14
	timeWidth     = 7
	checkWidth    = 8
	limitWidth    = 27
	never         = -1
)

// script is the source and the name by which a server that knows it runs it.
type script struct{ source, sha string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // Redis names scripts so
	return script{source, hex.EncodeToString(sum[:])}
}

// command lists the words of a call; whole sends the source, which makes the server know it.
func (s script) command(c *call, whole bool) []any {
	limits := 0
	for i := range c.checks {
		limits += len(c.checks[i].Rule.Limits)
	}
	words := make([]any, 0, wordsPerCall+len(c.checks)+limits)
	if whole {
		words = append(words, "eval", s.source, limits)
	} else {
		words = append(words, "evalsha", s.sha, limits)
	}
	for i := range c.checks {
		words = appendKeys(words, &c.checks[i])
	}
	words = append(words, c.callers()+c.attempts)
	for i := range c.checks {
		words = append(words, packCheck(&c.checks[i], c.receipt(i)))
	}
	return words
}

func appendKeys(words []any, c *limiter.Check) []any {
	for j := range c.Rule.Limits {
		words = append(words, c.CounterKey(nil, j))
	}
	return words
}

// packCheck is a check as the script unpacks it.
func packCheck(c *limiter.Check, receipt int64) []byte {
	r := c.Rule
	packed := make([]byte, 0, bytesPerCheck+bytesPerLimit*len(r.Limits))
	packed = append(packed, letter(r.Algorithm)[0], flag(r.Shadow)+2*flag(r.CountRejected))
	packed = appendBytes(packed, min(c.Cost, limiter.MaxCost), 4)
	packed = appendBytes(packed, r.Queue.MaxLength, 4)
	packed = appendBytes(packed, r.Queue.MaxWait.Microseconds(), 7)
	packed = appendBytes(packed, receipt, 7)
	packed = append(packed, byte(len(r.Limits))) //nolint:gosec // a rule has at most 32
	for _, l := range r.Limits {
		packed = appendBytes(packed, l.Requests, 4)
		packed = appendBytes(packed, l.Capacity(), 4)
		packed = appendBytes(packed, l.Window.Microseconds(), 6)
	}
	return packed
}

// appendBytes appends the last n bytes of a number, the greatest first.
func appendBytes(dst []byte, number int64, n int) []byte {
	var whole [8]byte
	binary.BigEndian.PutUint64(whole[:], uint64(number)) //nolint:gosec // never negative
	return append(dst, whole[8-n:]...)
}

// decode turns the row of a caller into one result a check.
func decode(checks []limiter.Check, reply string, place int) ([]limiter.Result, error) {
	width := 0
	for i := range checks {
		width += checkWidth + limitWidth*len(checks[i].Rule.Limits)
	}
	rows := (len(reply) - timeWidth) / width
	if rows < 1 || timeWidth+rows*width != len(reply) {
		return nil, fmt.Errorf("%w: %d bytes", ErrReply, len(reply))
	}
	packed := reader(reply)
	at := packed.take(timeWidth)
	packed = packed[width*min(place, rows-1):]
	results := make([]limiter.Result, len(checks))
	for i := range checks {
		results[i] = packed.result(checks[i].Rule.Limits)
		results[i].At = at
	}
	return results, nil
}

// reader is what is left to read of a reply.
type reader string

// take reads a number of n bytes.
func (r *reader) take(n int) int64 {
	var number int64
	for i := range n {
		number = number<<8 | int64((*r)[i])
	}
	*r = (*r)[n:]
	return number
}

func (r *reader) result(limits []limiter.Limit) limiter.Result {
	result := limiter.Result{
		Source: limiter.FromStore, Allowed: r.take(1) == 1, Delay: micros(r.take(7)),
		Limits: make([]limiter.State, len(limits)),
	}
	for j := range limits {
		s := &result.Limits[j]
		s.Allowed, s.Limit = r.take(1) == 1, limits[j].Requests
		s.Remaining, s.Current = r.take(6), r.take(6)
		s.ResetAfter = micros(r.take(7))
		if retry := micros(r.take(7) - 1); !result.Allowed {
			s.RetryAfter = retry
			result.RetryAfter = max(result.RetryAfter, retry)
		}
	}
	return result
}

func letter(a limiter.Algorithm) string { return string("?tlfsc"[a]) }

func flag(set bool) byte {
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
