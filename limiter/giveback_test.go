package limiter_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/memory"
)

func inMemory(name string) *limiter.Backend {
	return limiter.NewBackend(name, memory.New(memory.Options{}), &heard{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func TestWhatOneStoreRefusesCostsNothingInAnother(t *testing.T) {
	t.Parallel()
	wide, narrow := rule(inMemory("ns/a"), limiter.FailDeny, 10), rule(inMemory("ns/b"), limiter.FailDeny, 1)
	local := rule(nil, limiter.FailDeny, 10)
	local.Local, local.Mode = nil, limiter.Local
	shadow := rule(wide.Backend, limiter.FailDeny, 10)
	shadow.Scope, shadow.Shadow = "ns/p/shadow/t", true
	e := limiter.NewEngine(memory.New(memory.Options{}))
	checks := []limiter.Check{
		{Rule: local, Key: "k", Cost: 1},
		{Rule: wide, Key: "k", Cost: 1},
		{Rule: shadow, Key: "k", Cost: 1},
		{Rule: narrow, Key: "k", Cost: 1},
	}
	for i := range 5 {
		got, err := e.Decide(t.Context(), checks)
		if err != nil {
			t.Fatal(err)
		}
		if got[3].Allowed != (i == 0) || got[1].Limits[0].Remaining != 9 || got[0].Limits[0].Remaining != 9 {
			t.Errorf("request %d: %+v", i, got)
		}
	}
	for name, c := range map[string]struct {
		rule *limiter.Rule
		want int64
	}{"another store": {wide, 2}, "this process": {local, 2}, "a shadow": {shadow, 6}} {
		if got := ask(t, e, c.rule).Limits[0].Current; got != c.want {
			t.Errorf("%s counts %d, want %d", name, got, c.want)
		}
	}
}
