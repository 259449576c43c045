package redis

import (
	"testing"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

func FuzzDecodeTakesAnyReply(f *testing.F) {
	f.Add(int64(1), int64(1), int64(0), uint8(8), uint8(0))
	f.Add(int64(1), int64(0), int64(-1), uint8(15), uint8(3))
	checks := []limiter.Check{{Rule: &limiter.Rule{
		Algorithm: limiter.FixedWindow, Limits: []limiter.Limit{{Requests: 1, Window: time.Second}},
	}}}
	f.Fuzz(func(t *testing.T, a, b, c int64, length, place uint8) {
		reply := make([]int64, length)
		for i := range reply {
			reply[i] = []int64{a, b, c}[i%3]
		}
		results, err := decode(checks, reply, int(place))
		if (err == nil) != (length >= 8 && (length-1)%7 == 0) {
			t.Errorf("%d numbers: %v", length, err)
		}
		if err == nil && (len(results) != 1 || len(results[0].Limits) != 1) {
			t.Errorf("%d numbers: %+v", length, results)
		}
	})
}

func FuzzParseURLTakesAnyText(f *testing.F) {
	for _, text := range []string{"redis://user:pw@host:1/0", "rediss://host", "redis://host/1", "unix:///x", "::"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		address, _, _, _, err := ParseURL(text)
		if err == nil && address == "" {
			t.Errorf("%q has no address", text)
		}
	})
}
