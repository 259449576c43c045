package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/internal/compile"
)

// Whatever the files say, it is taken or refused in one line that names the file or the policy.
func FuzzPolicyFiles(f *testing.F) {
	for _, seed := range []string{
		fivePerTenSeconds, strings.Replace(fivePerTenSeconds, "5", "-5", 1), strings.Replace(fivePerTenSeconds, "10s", "10", 1),
		strings.Replace(fivePerTenSeconds, "limits", "key: [1], limits", 1), "---\n---\n", "a: [", "kind: Secret", "\x00", "- - -", "{}",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: a, labels: {sluice.dev/use: api-keys}}\nstringData: {a: b}\n---\n" + fivePerTenSeconds,
	} {
		f.Add([]byte(seed))
	}
	o := &options{replicas: 1, store: storeMemory}
	if err := o.describeStore(); err != nil {
		f.Fatal(err)
	}
	p, err := newProcess(o)
	if err != nil {
		f.Fatal(err)
	}
	p.log = slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, data []byte) {
		update, _, err := p.compileFiles([]compile.File{{Name: "policy.yaml", Data: data}})
		if err != nil {
			if text := err.Error(); strings.TrimSpace(text) == "" || strings.Contains(text, "panic") {
				t.Errorf("refused with %q", text)
			}
			return
		}
		results, err := p.loader.Load(update)
		for _, r := range results {
			if r.GetError() != "" {
				t.Errorf("%s was admitted, but can't be enforced: %s", r.GetPolicy(), r.GetError())
			}
		}
		if err != nil || len(results) == 0 {
			t.Errorf("taken, but not enforced: %v, %v", results, err)
		}
	})
}
