package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

func FuzzDecodeTakesAnyReply(f *testing.F) {
	f.Add("", uint8(0))
	f.Add(strings.Repeat("\xff", 42), uint8(3))
	f.Add(strings.Repeat("\x00", 77), uint8(1))
	checks := []limiter.Check{{Rule: &limiter.Rule{
		Algorithm: limiter.FixedWindow, Limits: []limiter.Limit{{Requests: 1, Window: time.Second}},
	}}}
	f.Fuzz(func(t *testing.T, reply string, place uint8) {
		results, err := decode(checks, reply, int(place))
		if n := len(reply); (err == nil) != (n >= 42 && (n-7)%35 == 0) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if err == nil && (len(results) != 1 || len(results[0].Limits) != 1) {
			t.Errorf("%q: %+v", reply, results)
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
