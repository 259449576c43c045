package expression_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/sluice-dev/sluice/internal/expression"
)

func headers(m map[string]string) expression.Strings {
	return expression.Strings{
		Get: func(name string) (string, bool) { v, ok := m[name]; return v, ok },
		All: func() map[string]string { return maps.Clone(m) },
	}
}

func environment(tb testing.TB) *expression.Env {
	tb.Helper()
	env, err := expression.New()
	if err != nil {
		tb.Fatal(err)
	}
	return env
}

func TestConditionsSeeTheRequest(t *testing.T) {
	t.Parallel()
	env := environment(t)
	vars := &expression.Vars{
		Method: "GET", Path: "/api/v1", Host: "shop.example", Size: 12, SourceAddress: "198.18.0.1",
		Headers:       headers(map[string]string{"x-plan": "gold"}),
		Authenticated: true, ID: "ann", Key: "apikey|ann", Tier: "premium",
		Claims: map[string]any{"plan": "premium", "groups": []any{"a", "b"}, "level": 3.0},
	}
	for source, want := range map[string]bool{
		`identity.authenticated && identity.claims.plan == "premium"`: true,
		`identity.claims.absent == ""`:                                true,
		`"absent" in identity.claims`:                                 false,
		`"b" in identity.claims.groups`:                               true,
		`identity.claims.level > 2`:                                   true,
		`request.headers["x-plan"] == "gold"`:                         true,
		`request.headers["x-none"] == ""`:                             true,
		`request.headers.exists(name, name == "x-plan")`:              true,
		`"x-none" in request.headers`:                                 false,
		`request.query.page == ""`:                                    true,
		`request.method != "OPTIONS"`:                                 true,
		`request.path.startsWith("/api") && request.size == 12`:       true,
		`source.address == "198.18.0.1"`:                              true,
		`identity.key == "apikey|" + identity.id`:                     true,
		`identity.tier == "premium" && !identity.invalid`:             true,
	} {
		program, err := env.Compile(expression.Condition, source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := program.Bool(vars); err != nil || got != want {
			t.Errorf("%s = %v, %v; want %v", source, got, err, want)
		}
	}
}

func TestKeyCostAndBody(t *testing.T) {
	t.Parallel()
	env := environment(t)
	vars := &expression.Vars{
		Claims:   map[string]any{"org": "acme", "n": int64(4)},
		Decision: expression.Decision{Limit: 5, Rule: "api"},
	}
	key, err := env.Compile(expression.Key, "identity.claims.org")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := key.String(vars); got != "acme" || err != nil {
		t.Errorf("key = %q, %v", got, err)
	}
	cost, err := env.Compile(expression.Cost, "identity.claims.n * 2")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cost.Int(vars); got != 8 || err != nil {
		t.Errorf("cost = %d, %v", got, err)
	}
	body, err := env.Compile(expression.Body, `{"error": "slow down", "limit": decision.limit}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := body.Text(vars); string(got) != `{"error":"slow down","limit":5}` || err != nil {
		t.Errorf("body = %s, %v", got, err)
	}
}

func TestMistakesHaveAPlace(t *testing.T) {
	t.Parallel()
	env := environment(t)
	for _, c := range []struct {
		kind         expression.Kind
		source       string
		line, column int
	}{
		{expression.Condition, "identity.nobody", 1, 1},
		{expression.Condition, "request.method ==", 1, 18},
		{expression.Condition, "true &&\n request.size == \"a\"", 2, 15},
		{expression.Condition, "request.method", 1, 1},
		{expression.Cost, `"1"`, 1, 1},
		{expression.Key, "decision.rule", 1, 1},
	} {
		_, err := env.Compile(c.kind, c.source)
		var at *expression.Error
		if !errors.As(err, &at) || at.Line != c.line || at.Column != c.column {
			t.Errorf("%q: %v, want an error at %d:%d", c.source, err, c.line, c.column)
		}
	}
}

func TestAnExpensiveExpressionIsCut(t *testing.T) {
	t.Parallel()
	env := environment(t)
	program, err := env.Compile(expression.Condition,
		`[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, `+
			`[0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, a+b+c+d+e >= 0)))))`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := program.Bool(&expression.Vars{}); err == nil {
		t.Error("evaluated without a bound")
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{`identity.claims.plan == "premium"`, "1 +", "request.headers['a']", "\x00"} {
		f.Add(seed)
	}
	env := environment(f)
	f.Fuzz(func(_ *testing.T, source string) {
		for _, kind := range []expression.Kind{expression.Condition, expression.Key, expression.Cost, expression.Body} {
			if program, err := env.Compile(kind, source); err == nil {
				_, _ = program.Bool(&expression.Vars{})
			}
		}
	})
}
