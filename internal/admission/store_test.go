package admission_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/admission"
)

func externalStore(addresses ...string) *v1alpha1.RateLimitStore {
	return &v1alpha1.RateLimitStore{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "shop"},
		Spec: v1alpha1.RateLimitStoreSpec{
			External: &v1alpha1.ExternalStore{Topology: v1alpha1.TopologyStandalone, Addresses: addresses},
			Timeout:  "50ms",
		},
	}
}

func TestStoreAddresses(t *testing.T) {
	t.Parallel()
	for address, problem := range map[string]string{
		"redis.cache.svc:6379":                     "",
		"redis-0.redis.cache.svc.cluster.local.:1": "",
		"10.0.0.7:6379":                            "",
		"[2001:db8::7]:6379":                       "",
		"[fd00::7]:65535":                          "",
		"redis:0":                                  "the port must be from 1 to 65535",
		"redis:65536":                              "the port must be from 1 to 65535",
		"redis":                                    "must be host:port",
		"localhost:6379":                           "loopback",
		"LOCALHOST.:6379":                          "loopback",
		"redis.localhost:6379":                     "loopback",
		"127.0.0.1:6379":                           "loopback",
		"127.255.0.9:6379":                         "loopback",
		"[::1]:6379":                               "loopback",
		"[::ffff:127.0.0.1]:6379":                  "loopback",
		"169.254.169.254:80":                       "link-local",
		"[fe80::1]:6379":                           "link-local",
		"[::ffff:169.254.169.254]:80":              "link-local",
		"0.0.0.0:6379":                             "one server",
		"[::]:6379":                                "one server",
		"224.0.0.9:6379":                           "link-local",
		"239.1.2.3:6379":                           "one server",
		"127.1:6379":                               "usual form",
		"2130706433:6379":                          "usual form",
		"0x7f.0.0.0x1:6379":                        "usual form",
	} {
		errs := admission.ValidateStore(externalStore(address))
		switch {
		case problem == "" && len(errs) > 0:
			t.Errorf("%s: refused: %v", address, errs)
		case problem != "" && (len(errs) != 1 || errs[0].Field != "spec.external.addresses[0]" || !strings.Contains(errs[0].Detail, problem)):
			t.Errorf("%s: want %q, got %v", address, problem, errs)
		}
	}
}

func TestStoresThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	managed := func(change func(*v1alpha1.ManagedStore)) *v1alpha1.RateLimitStore {
		store := &v1alpha1.RateLimitStore{Spec: v1alpha1.RateLimitStoreSpec{Managed: &v1alpha1.ManagedStore{}}}
		change(store.Spec.Managed)
		return store
	}
	shared := func(allowed v1alpha1.AllowedNamespaces, admin *v1alpha1.SecretName) *v1alpha1.RateLimitStore {
		store := externalStore("redis:6379")
		store.Spec.AllowedNamespaces, store.Spec.External.AdminSecretRef = &allowed, admin
		return store
	}
	timeout := func(value v1alpha1.Duration) *v1alpha1.RateLimitStore {
		store := externalStore("redis:6379")
		store.Spec.Timeout = value
		return store
	}
	for _, c := range []struct {
		name  string
		store *v1alpha1.RateLimitStore
		field string
	}{
		{"the shortest timeout", timeout("1ms"), ""},
		{"the longest timeout", timeout("10s"), ""},
		{"no timeout", timeout("0ms"), "spec.timeout"},
		{"too long a timeout", timeout("10s1ms"), "spec.timeout"},
		{"shared with nobody", shared(v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}, nil), ""},
		{"shared without admin", shared(v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesAll}, nil), "spec.allowedNamespaces"},
		{"shared by label without admin", shared(v1alpha1.AllowedNamespaces{Selector: &metav1.LabelSelector{}}, nil), "spec.allowedNamespaces"},
		{"an administrator's Secret", shared(v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}, &v1alpha1.SecretName{Name: "admin"}), "spec.external.adminSecretRef"},
		{"shared with a word that means nothing", shared(v1alpha1.AllowedNamespaces{From: "Some"}, nil), "spec.allowedNamespaces"},
		{"shared by a selector that means nothing", shared(v1alpha1.AllowedNamespaces{Selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Is"}},
		}}, nil), "spec.allowedNamespaces.selector.matchExpressions[0].operator"},
		{"managed", managed(func(*v1alpha1.ManagedStore) {}), ""},
		{"too little memory", managed(func(m *v1alpha1.ManagedStore) { m.Memory = new(resource.MustParse("1Mi")) }), "spec.managed.memory"},
		{"no storage", managed(func(m *v1alpha1.ManagedStore) { m.Storage = &v1alpha1.Storage{Size: new(resource.MustParse("0"))} }), "spec.managed.storage.size"},
		{"a limit below the memory", managed(func(m *v1alpha1.ManagedStore) {
			m.Memory = new(resource.MustParse("256Mi"))
			m.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}}
		}), "spec.managed.resources.limits.memory"},
	} {
		errs := admission.ValidateStore(c.store)
		switch {
		case c.field == "" && len(errs) > 0:
			t.Errorf("%s: refused: %v", c.name, errs)
		case c.field != "" && (len(errs) != 1 || errs[0].Field != c.field):
			t.Errorf("%s: want an error at %s, got %v", c.name, c.field, errs)
		}
	}
}

func TestStoreWarnings(t *testing.T) {
	t.Parallel()
	store := externalStore("redis:6379")
	store.Spec.Timeout = "2s"
	for _, part := range []string{"spec.timeout", "unencrypted", "accept everyone"} {
		if !slices.ContainsFunc(admission.StoreWarnings(store), func(text string) bool { return strings.Contains(text, part) }) {
			t.Errorf("no warning with %q in %q", part, admission.StoreWarnings(store))
		}
	}
	store.Spec.Timeout = "50ms"
	store.Spec.External.AuthSecretRef = &v1alpha1.SecretName{Name: "auth"}
	store.Spec.External.TLS = &v1alpha1.StoreTLS{}
	if warnings := admission.StoreWarnings(store); len(warnings) > 0 {
		t.Errorf("warned without need: %q", warnings)
	}
	store.Spec.External.TLS.InsecureSkipVerify = new(true)
	if warnings := admission.StoreWarnings(store); len(warnings) != 1 {
		t.Errorf("insecureSkipVerify: %q", warnings)
	}
}
