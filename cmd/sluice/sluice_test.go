package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const goodPolicy = `
apiVersion: ratelimit.sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shop, namespace: shop}
spec:
  rules:
  - {name: api, algorithm: TokenBucket, limits: [{requests: 5, window: 10s}]}
`

// sluice runs one command line.
func sluice(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints strings.Builder
	code = run(t.Context(), append([]string{"sluice"}, args...), strings.NewReader(stdin), &out, &complaints)
	return code, out.String(), complaints.String()
}

func TestCheckAcceptsAPolicyFromAFileAndFromStandardInput(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(goodPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, "-"} {
		if code, stdout, stderr := sluice(t, goodPolicy, "check", name); code != 0 || stdout != "shop/shop: ok\n" || stderr != "" {
			t.Errorf("%s: code %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
}

func TestCheckAcceptsTheSamples(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := sluice(t, "", "check", "../../config/samples/ratelimit_v1alpha1_ratelimitpolicy.yaml")
	if code != 0 || stdout != "shop/shop: ok\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestCheckNamesTheFieldOfAMistake(t *testing.T) {
	t.Parallel()
	broken := strings.Replace(goodPolicy, "name: api", "name: api, when: 'true && request.metod == \"GET\"'", 1)
	code, _, stderr := sluice(t, broken, "check", "-")
	if code != 1 || !strings.Contains(stderr, "shop/shop: spec.rules[0].when: Invalid value") || !strings.Contains(stderr, "1:9: request has no such field here; its fields are method, path") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
}

func TestCheckSaysWhatIsMissingWithoutCallingItAMistake(t *testing.T) {
	t.Parallel()
	keys := strings.Replace(goodPolicy, "spec:", "spec:\n  identity: {jwt: [{issuer: https://id.example.com, jwks: {configMapRef: {name: keys, key: jwks.json}}}]}", 1)
	code, stdout, stderr := sluice(t, keys, "check", "-")
	if code != 0 || stdout != "shop/shop: ok\n" || !strings.Contains(stderr, "spec.identity.jwt[0].jwks") {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestAMistakeIsOneLineAndAnExitCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  int
		says  string
		stdin string
		args  []string
	}{
		{2, "no file is given", "", []string{"check"}},
		{2, `there is no command "chekc"`, "", []string{"chekc"}},
		{2, "unknown flag: --loud", "", []string{"check", "--loud"}},
		{1, "no such file", "", []string{"check", "missing.yaml"}},
		{1, "document 1", "kind: [", []string{"check", "-"}},
		{1, "no RateLimitPolicy", "", []string{"check", "-"}},
		{1, "missing.kubeconfig", "", []string{"status", "--kubeconfig", "missing.kubeconfig"}},
	} {
		code, _, stderr := sluice(t, c.stdin, c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: code %d, stderr %q", c.args, code, stderr)
		}
	}
}

func TestStatusSaysWhatKeepsAPolicyFromBeingEnforced(t *testing.T) {
	t.Parallel()
	condition := func(kind string, status metav1.ConditionStatus, generation int64, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message}
	}
	policies := []v1alpha1.RateLimitPolicy{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "part", Generation: 2}, Status: v1alpha1.RateLimitPolicyStatus{
			Sidecars: &v1alpha1.SidecarCounts{Summary: "1/2"},
			Conditions: []metav1.Condition{
				condition("Ready", metav1.ConditionFalse, 2, "PartiallyProgrammed", "sums up"),
				condition("Programmed", metav1.ConditionFalse, 2, "PartiallyProgrammed", "pod shop-1 lags"),
			},
		}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "edited", Generation: 2}, Status: v1alpha1.RateLimitPolicyStatus{
			Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue, 1, "Ready", ""), condition("Accepted", metav1.ConditionFalse, 1, "Invalid", "old news")},
		}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "unseen", Generation: 1}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "cart", Name: "good", Generation: 1}, Status: v1alpha1.RateLimitPolicyStatus{
			Sidecars:   &v1alpha1.SidecarCounts{Summary: "3/3"},
			Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue, 1, "Ready", "")},
		}},
	}
	var out strings.Builder
	if err := writeStatus(&out, policies); err == nil {
		t.Error("policies that are not ready were called ready")
	}
	want := `NAMESPACE   NAME     READY     SIDECARS   WHY NOT
cart        good     True      3/3        -
shop        edited   Unknown   -          Accepted: the operator has not looked at the last edit yet
shop        part     False     1/2        Programmed: PartiallyProgrammed: pod shop-1 lags
shop        unseen   Unknown   -          the operator has not looked at it; does it run?
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestHelpNamesThePluginAsItWasCalled(t *testing.T) {
	t.Parallel()
	var out, complaints strings.Builder
	if code := run(t.Context(), []string{"/usr/local/bin/kubectl-sluice", "--help"}, strings.NewReader(""), &out, &complaints); code != 0 {
		t.Errorf("code %d, said %q", code, complaints.String())
	}
	if !strings.Contains(out.String(), "kubectl sluice") {
		t.Errorf("got %s", out.String())
	}
}
