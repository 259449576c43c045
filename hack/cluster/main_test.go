package main

import (
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/hack/cluster/internal/image"
)

// call runs one command line and returns the exit code and what was written.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	code, out, _ := call(t, "--help")
	if code != 0 || !strings.HasPrefix(out, "A real Kubernetes on this machine") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for name := range commands() {
		if !strings.Contains(out, "\n  "+name) {
			t.Errorf("--help does not mention %s", name)
		}
		code, out, _ := call(t, name, "--help")
		if code != 0 || !strings.HasPrefix(out, "Usage: go run ./hack/cluster "+name+" ") {
			t.Errorf("%s --help: exit code %d:\n%s", name, code, out)
		}
	}
}

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	for want, args := range map[string][]string{
		"no command given":              {},
		`no command "start"`:            {"start"},
		"flag provided but not defined": {"up", "--fast"},
		`what is "now"`:                 {"down", "now"},
		"--only is envtest or all":      {"assets", "--only", "etcd"},
		"1 to 8 nodes":                  {"up", "--nodes", "0"},
		"nothing to load":               {"load"},
		"is not NAME=BINARY":            {"load", "shop"},
	} {
		code, _, errs := call(t, args...)
		if code != exitUsage || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) {
			t.Errorf("%q: exit code %d, said %q, want %q", args, code, errs, want)
		}
	}
}

func TestPrintPathPrintsOnlyThePath(t *testing.T) {
	t.Setenv("SLUICE_CACHE", "/somewhere")
	code, out, errs := call(t, "assets", "--print-path")
	if code != 0 || !strings.HasPrefix(out, "/somewhere/kubernetes-v") || strings.Count(out, "\n") != 1 || errs != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestFlagsMayStandAfterOperands(t *testing.T) {
	i := invocation{name: "load", args: []string{"a=b", "--name", "x", "c=d"}}
	set := i.flags("", "")
	name := nameFlag(set)
	operands, err := i.parse(set, 2)
	if err != nil || *name != "x" || strings.Join(operands, " ") != "a=b c=d" {
		t.Errorf("name %q, operands %q, error %v", *name, operands, err)
	}
}

func TestAddedFiles(t *testing.T) {
	files, err := parseAdded([]string{"ca.pem:/etc/ssl/ca.pem"})
	if err != nil || len(files) != 1 || files[0] != (image.File{Source: "ca.pem", Path: "/etc/ssl/ca.pem"}) {
		t.Errorf("got %v, %v", files, err)
	}
	for _, bad := range []string{"ca.pem", "ca.pem:relative", ":/x"} {
		if _, err := parseAdded([]string{bad}); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestBuildsUseScratchUnlessTold(t *testing.T) {
	for want, args := range map[string]several{
		"BASE=scratch": {"GO=x"},
		"BASE=other":   {"BASE=other"},
	} {
		f := loadFlags{dockerfile: "dir/Dockerfile", args: args}
		b, err := f.build()
		if err != nil || !strings.Contains(strings.Join(b.Args, " "), want) || b.Context != "dir" {
			t.Errorf("%q: got %+v, %v", args, b, err)
		}
	}
}
