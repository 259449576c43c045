// Package rbac_test holds the operator's rights to the list of reasons below.
package rbac_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// right is verbs on a resource of a group ("resource.group"; only the named objects where names are given).
type right struct {
	resource string
	names    string
	verbs    map[string]string // verb to reason
}

func reading(why string) map[string]string {
	return map[string]string{"get": why, "list": why, "watch": why}
}

func with(verbs map[string]string, more map[string]string) map[string]string {
	all := maps.Clone(verbs)
	maps.Copy(all, more)
	return all
}

func clusterRights() []right {
	objects := "what the policies and stores want"
	status := map[string]string{"patch": "conditions and counts"}
	managed := map[string]string{"create": "objects of managed stores", "patch": "objects of managed stores"}
	target := reading("targetRefs, and whose pods are whose")
	return []right{
		{resource: "ratelimitpolicies.ratelimit.sluice.dev", verbs: reading(objects)},
		{resource: "ratelimitstores.ratelimit.sluice.dev", verbs: reading(objects)},
		{resource: "ratelimitpolicies/status.ratelimit.sluice.dev", verbs: status},
		{resource: "ratelimitstores/status.ratelimit.sluice.dev", verbs: status},
		{resource: "ratelimitstores/finalizers.ratelimit.sluice.dev", verbs: map[string]string{
			"update": "objects of managed stores name the store as their blocking owner",
		}},
		{resource: "namespaces.", verbs: reading("inject label, PodSecurity level, allowedNamespaces")},
		{resource: "pods.", verbs: reading("which pods a policy selects, and which run without a sidecar")},
		{resource: "secrets.", verbs: with(reading("Secrets labelled sluice.dev/use, and the webhook's certificate"), map[string]string{
			"create": "the hash key of a namespace, the password of a managed store",
		})},
		{resource: "configmaps.", verbs: with(reading("key sets, and sluice-ca"), map[string]string{
			"create": "sluice-ca in each namespace with sidecars", "patch": "sluice-ca after a rotation",
		})},
		{resource: "services.", verbs: with(reading("targetRefs, and targets by name"), managed)},
		{resource: "deployments.apps", verbs: target},
		{resource: "daemonsets.apps", verbs: target},
		{resource: "replicasets.apps", verbs: target},
		{resource: "statefulsets.apps", verbs: with(target, managed)},
		{resource: "controllerrevisions.apps", verbs: map[string]string{
			"list": "the last accepted spec of a policy, after a restart", "watch": "the last accepted spec of a policy, after a restart",
			"create": "the last accepted spec of a policy", "delete": "the one before",
		}},
		{resource: "jobs.batch", verbs: target},
		{resource: "cronjobs.batch", verbs: target},
		{resource: "tokenreviews.authentication.k8s.io", verbs: map[string]string{"create": "who opens a push stream"}},
		{resource: "events.events.k8s.io", verbs: map[string]string{"create": "transitions and refusals", "patch": "their repetition"}},
		{resource: "mutatingwebhookconfigurations.admissionregistration.k8s.io", verbs: reading("whether our CA stands in ours")},
		{resource: "validatingwebhookconfigurations.admissionregistration.k8s.io", verbs: reading("whether our CA stands in ours")},
		{resource: "mutatingwebhookconfigurations.admissionregistration.k8s.io", names: "sluice-injector", verbs: map[string]string{"update": "the CA"}},
		{resource: "validatingwebhookconfigurations.admissionregistration.k8s.io", names: "sluice-validator", verbs: map[string]string{"update": "the CA"}},
	}
}

func namespaceRights() []right {
	leader := "leader election"
	return []right{
		{resource: "leases.coordination.k8s.io", verbs: map[string]string{"create": leader, "get": leader, "update": leader}},
		{resource: "events.", verbs: map[string]string{"create": "a new leader", "patch": "its repetition"}},
		{resource: "secrets.", names: "sluice-webhook-cert", verbs: map[string]string{"update": "rotation of the certificate"}},
	}
}

func TestEveryRightHasAReasonAndEveryReasonARight(t *testing.T) {
	t.Parallel()
	for file, rights := range map[string][]right{"cluster_role.yaml": clusterRights(), "role.yaml": namespaceRights()} {
		want := make([]string, 0, len(rights))
		for _, r := range rights {
			for verb, why := range r.verbs {
				if why == "" {
					t.Errorf("%s: no reason for %s %s", file, verb, r.resource)
				}
				want = append(want, verb+" "+r.resource+" "+r.names)
			}
		}
		got := granted(t, file)
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("%s grants %q without a reason", file, line)
			}
		}
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s does not grant %q", file, line)
			}
		}
	}
}

func TestNoWildcardsAndNoWayToMoreRights(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"cluster_role.yaml", "role.yaml", "user_roles.yaml"} {
		for _, line := range granted(t, file) {
			if strings.Contains(line, "*") {
				t.Errorf("%s has a wildcard: %q", file, line)
			}
			for _, forbidden := range []string{"escalate ", "bind ", "impersonate ", " pods/exec.", " serviceaccounts/token."} {
				if strings.Contains(line, forbidden) {
					t.Errorf("%s grants %q", file, line)
				}
			}
		}
	}
}

// granted lists the rights of all roles in a file as "verb resource.group names".
func granted(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text))
	for {
		var role rbacv1.ClusterRole
		err := decoder.Decode(&role)
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						lines = append(lines, verb+" "+resource+"."+group+" "+strings.Join(rule.ResourceNames, ","))
					}
				}
			}
		}
	}
}
