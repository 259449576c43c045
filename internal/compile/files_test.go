package compile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/internal/compile"
)

const goodFile = `
apiVersion: ratelimit.sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shop, namespace: shop, labels: {team: shop}}
spec:
  rules:
  - name: api
    algorithm: TokenBucket
    cost: "1"
    limits: [{requests: 5, window: 10s}]
---
apiVersion: v1
kind: Secret
metadata: {name: ann, namespace: shop}
stringData: {key: secret}
`

// The API server refuses what YAML takes for a number or a truth value where a string belongs; so must the files' reader,
// or a policy would be checked and counted under a name that nobody wrote.
func TestAValueOfTheWrongTypeIsRefusedAsTheAPIServerDoes(t *testing.T) {
	t.Parallel()
	if _, err := compile.ReadFiles([]compile.File{{Name: "good.yaml", Data: []byte(goodFile)}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, wrong, field string }{
		{"name: shop", "name: 123", "metadata.name"},
		{"namespace: shop", "namespace: off", "metadata.namespace"},
		{"team: shop", "team: 1", "metadata.labels"},
		{"name: api", "name: on", "name"},
		{`cost: "1"`, "cost: 1", "cost"},
		{"window: 10s", "window: 10", "window"},
		{"requests: 5", `requests: "5"`, "requests"},
		{"key: secret", "key: yes", "stringData"},
	} {
		text := strings.Replace(goodFile, c.old, c.wrong, 1)
		_, err := compile.ReadFiles([]compile.File{{Name: "wrong.yaml", Data: []byte(text)}})
		if !errors.Is(err, compile.ErrFile) || !strings.Contains(err.Error(), c.field+" of type") || !strings.Contains(err.Error(), "wrong.yaml, document") {
			t.Errorf("%s: %v", c.wrong, err)
		}
	}
}

func TestAFieldThatIsUnknownOrThereTwiceIsRefused(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"cost: \"1\"\n    cots: \"1\"", "cost: \"1\"\n    cost: \"2\"", "Cost: \"1\""} {
		text := strings.Replace(goodFile, `cost: "1"`, wrong, 1)
		if _, err := compile.ReadFiles([]compile.File{{Name: "wrong.yaml", Data: []byte(text)}}); !errors.Is(err, compile.ErrFile) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
