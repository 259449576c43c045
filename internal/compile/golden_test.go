package compile_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-dev/sluice/internal/compile"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func assemble(t *testing.T, name string) (compile.Inputs, *pushv1.Update) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	files, err := compile.ReadFiles([]compile.File{{Name: name, Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	in, err := files.Inputs("shop/default")
	if err != nil {
		t.Fatal(err)
	}
	in.HashKey = []byte("0123456789abcdef0123456789abcdef")
	for i, p := range in.Policies {
		in.Shares = append(in.Shares, &pushv1.Share{Policy: compile.PolicyName(p), Rank: uint32(i), Of: 3})
	}
	in.Stores = []*pushv1.Store{{Name: "shop/other"}, {Name: "shop/default"}}
	u, err := compile.Assemble(in)
	if err != nil {
		t.Fatal(err)
	}
	return in, u
}

// TestPoliciesCompileToTheGoldenRuleSets reads testdata/*.yaml; -update rewrites what stands beside them.
func TestPoliciesCompileToTheGoldenRuleSets(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range names {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			_, u := assemble(t, filepath.Base(path))
			got := append(readable(t, u.GetRuleSet(), &pushv1.RuleSet{}), readable(t, u.GetSecrets(), &pushv1.Secrets{})...)
			golden := strings.TrimSuffix(path, ".yaml") + ".golden.json"
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs; go test ./internal/compile -update rewrites it. Got:\n%s", golden, got)
			}
		})
	}
}

func readable(t *testing.T, encoded []byte, m proto.Message) []byte {
	t.Helper()
	if err := proto.Unmarshal(encoded, m); err != nil {
		t.Fatal(err)
	}
	data, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil { // protojson's own spaces change from build to build
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func TestTheOrderOfInputsChangesNoByte(t *testing.T) {
	t.Parallel()
	in, first := assemble(t, "several.yaml")
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		shuffle(random, in.Policies)
		shuffle(random, in.Stores)
		shuffle(random, in.Shares)
		for _, keys := range in.APIKeys {
			shuffle(random, keys)
		}
		for _, sets := range in.KeySets {
			shuffle(random, sets)
		}
		again, err := compile.Assemble(in)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(first, again) {
			t.Fatal("another order gave other bytes")
		}
	}
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

func TestEveryInputCountsInTheContentVersion(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*compile.Inputs){
		"hash key": func(in *compile.Inputs) { in.HashKey = []byte("another") },
		"store":    func(in *compile.Inputs) { in.Stores[0] = &pushv1.Store{Name: "shop/default", Password: "changed"} },
		"share":    func(in *compile.Inputs) { in.Shares[0] = &pushv1.Share{Policy: "shop/api", Of: 9} },
		"API key":  func(in *compile.Inputs) { in.APIKeys["shop/api"] = in.APIKeys["shop/api"][1:] },
		"key set":  func(in *compile.Inputs) { in.KeySets["shop/api"] = nil },
		"policy":   func(in *compile.Inputs) { in.Policies = in.Policies[1:] },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, before := assemble(t, "several.yaml")
			change(&in)
			after, err := compile.Assemble(in)
			if err != nil {
				t.Fatal(err)
			}
			if before.GetContentVersion() == after.GetContentVersion() {
				t.Error("the version did not change")
			}
		})
	}
}

func TestKeysChangeTheVersionOfTheirPolicyAlone(t *testing.T) {
	t.Parallel()
	versions := func(u *pushv1.Update) map[string]string {
		var set pushv1.RuleSet
		if err := proto.Unmarshal(u.GetRuleSet(), &set); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, p := range set.GetPolicies() {
			out[compile.PolicyName(p)] = p.GetVersion()
		}
		return out
	}
	in, first := assemble(t, "several.yaml")
	in.APIKeys["shop/api"] = in.APIKeys["shop/api"][1:]
	second, err := compile.Assemble(in)
	if err != nil {
		t.Fatal(err)
	}
	before, after := versions(first), versions(second)
	if before["shop/api"] == after["shop/api"] || before["shop/export"] != after["shop/export"] {
		t.Errorf("before %v, after %v", before, after)
	}
}
