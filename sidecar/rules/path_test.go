package rules_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/sidecar/rules"
)

func TestPathsOfOneResourceLookTheSame(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/": "/", "": "/", "/a": "/a", "/a/": "/a/", "//a": "/a", "/a//b": "/a/b", "/./a": "/a", "/a/.": "/a/", "/a/..": "/", "/a/b/..": "/a/",
		"/../a": "/a", "/%61": "/a", "/%7e%2D%5f": "/~-_", "/a%2fb": "/a%2Fb", "/%2e%2e/a": "/a", "/a/%2e%2e/b": "/b", "/%2561": "/%2561", "/.well-known": "/.well-known",
		"/..a": "/..a", "/a...": "/a...", "/a;b/c": "/a;b/c", "/%c3%a4": "/%C3%A4", "*": "/*",
	} {
		if got := rules.NormalizePath(path); got != want {
			t.Errorf("%q is matched as %q, want %q", path, got, want)
		}
	}
}

func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"/", "//a/./b/../%2e%2E/c", "/a%2fb|c", "/%61%", "/a#b?c", "/..;/x", `/\..\a`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI("/" + path)
		if err != nil {
			return // net/http refuses it too
		}
		rules.EscapePath(u)
		sent := u.EscapedPath()
		if again, err := url.ParseRequestURI(sent); err != nil || again.EscapedPath() != sent || again.RawQuery != "" {
			t.Errorf("%q is sent as %q, which reads as %v, %v", path, sent, again, err)
		}
		normal := rules.NormalizePath(sent)
		if rules.NormalizePath(normal) != normal {
			t.Errorf("%q is not stable: %q", normal, rules.NormalizePath(normal))
		}
		for segment := range strings.SplitSeq(strings.Trim(normal, "/"), "/") {
			if segment == "." || segment == ".." || segment == "" && normal != "/" {
				t.Errorf("%q is matched as %q", sent, normal)
			}
		}
	})
}
