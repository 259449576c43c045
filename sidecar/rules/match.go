package rules

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// matcher is one alternative of a rule, without its path where the index has decided on it.
type matcher struct {
	rule    *Rule
	pattern *regexp.Regexp // of the path
	method  string
	headers []valueMatch
	query   []valueMatch
}

type valueMatch struct {
	name    string
	exact   string
	pattern *regexp.Regexp
}

// index finds the alternatives that may fit a path without looking at those that can't.
type index struct {
	exact  map[string][]*matcher
	prefix map[string][]*matcher // without the slash at the end; "" is everything
	others []*matcher            // regular expressions
}

func newIndex() *index {
	return &index{exact: map[string][]*matcher{}, prefix: map[string][]*matcher{}}
}

func (x *index) add(r *Rule, matches []*pushv1.Match) error {
	if len(matches) == 0 {
		x.prefix[""] = append(x.prefix[""], &matcher{rule: r})
	}
	for _, m := range matches {
		compiled := &matcher{rule: r, method: m.GetMethod()}
		var err error
		if compiled.headers, err = valueMatches(m.GetHeaders(), http.CanonicalHeaderKey); err != nil {
			return err
		}
		if compiled.query, err = valueMatches(m.GetQueryParams(), func(s string) string { return s }); err != nil {
			return err
		}
		if err := x.place(compiled, m.GetPath()); err != nil {
			return err
		}
	}
	return nil
}

func (x *index) place(m *matcher, path *pushv1.Match_StringMatch) error {
	switch path.GetType() {
	case pushv1.Match_TYPE_EXACT:
		at := NormalizePath(path.GetValue())
		x.exact[at] = append(x.exact[at], m)
	case pushv1.Match_TYPE_REGULAR_EXPRESSION:
		pattern, err := whole(path.GetValue())
		if err != nil {
			return err
		}
		m.pattern = pattern
		x.others = append(x.others, m)
	default:
		at := strings.TrimSuffix(NormalizePath(path.GetValue()), "/")
		x.prefix[at] = append(x.prefix[at], m)
	}
	return nil
}

// find calls each for every rule that a request matches, in no order, maybe more than once.
func (x *index) find(path string, r *http.Request, query func() map[string]string, each func(*Rule)) {
	visit := func(list []*matcher) {
		for _, m := range list {
			if m.fits(path, r, query) {
				each(m.rule)
			}
		}
	}
	visit(x.exact[path])
	visit(x.others)
	visit(x.prefix[""])
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			visit(x.prefix[path[:i]])
		}
	}
}

func (m *matcher) fits(path string, r *http.Request, query func() map[string]string) bool {
	if m.method != "" && m.method != r.Method || m.pattern != nil && !m.pattern.MatchString(path) {
		return false
	}
	for i := range m.headers {
		if !m.headers[i].fits(strings.Join(r.Header[m.headers[i].name], ",")) {
			return false
		}
	}
	for i := range m.query {
		if !m.query[i].fits(query()[m.query[i].name]) {
			return false
		}
	}
	return true
}

func (v *valueMatch) fits(value string) bool {
	if v.pattern != nil {
		return v.pattern.MatchString(value)
	}
	return value == v.exact
}

func valueMatches(list []*pushv1.Match_NamedMatch, canonical func(string) string) ([]valueMatch, error) {
	var out []valueMatch
	for _, n := range list {
		v := valueMatch{name: canonical(n.GetName()), exact: n.GetValue().GetValue()}
		if n.GetValue().GetType() == pushv1.Match_TYPE_REGULAR_EXPRESSION {
			pattern, err := whole(n.GetValue().GetValue())
			if err != nil {
				return nil, err
			}
			v.pattern = pattern
		}
		out = append(out, v)
	}
	return out, nil
}

// whole compiles an expression that must match the whole value.
func whole(expr string) (*regexp.Regexp, error) {
	pattern, err := regexp.Compile(`^(?:` + expr + `)$`)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", expr, err)
	}
	return pattern, nil
}
