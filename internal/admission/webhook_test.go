package admission_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/admission"
)

// warnings are what the API server warned a client of.
type warnings struct {
	mutex sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) contain(part string) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.ContainsFunc(w.texts, func(text string) bool { return strings.Contains(text, part) })
}

func startCluster(t *testing.T) (client.Client, *warnings) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set; see CONTRIBUTING.md, or run make test")
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("..", "..", "config", "webhook", "validating.yaml")}},
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	runManager(t, config, scheme, environment.WebhookInstallOptions)
	seen := &warnings{}
	own := rest.CopyConfig(config)
	own.WarningHandler = seen
	api, err := client.New(own, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return api, seen
}

func runManager(t *testing.T, config *rest.Config, scheme *runtime.Scheme, options envtest.WebhookInstallOptions) {
	t.Helper()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	admission.Setup(mgr)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	deadline, done := context.WithTimeout(t.Context(), 30*time.Second)
	defer done()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for started := mgr.GetWebhookServer().StartedChecker(); started(nil) != nil; {
		select {
		case <-deadline.Done():
			t.Fatal("the webhook server does not answer")
		case <-tick.C:
		}
	}
}

const goodPolicy = `
apiVersion: ratelimit.sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: %s, namespace: default}
spec:
  tiers:
  - {name: premium, when: 'identity.claims.plan == "premium"'}
  - {name: anonymous}
  rules:
  - name: api
    limits:
    - {tier: premium, requests: 100, window: 1m}
    - {tier: anonymous, requests: 10, window: 1m}
`

const goodStore = `
apiVersion: ratelimit.sluice.dev/v1alpha1
kind: RateLimitStore
metadata: {name: %s, namespace: default}
spec:
  external: {addresses: ["redis.cache.svc:6379"]}
`

func object(t *testing.T, text, name string) *unstructured.Unstructured {
	t.Helper()
	result := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, text, name), result); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	api, seen := startCluster(t)

	t.Run("a good policy and a good store are accepted", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{goodPolicy, goodStore} {
			if err := api.Create(t.Context(), object(t, text, "good")); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("a CEL error is refused with the field's path and the column", func(t *testing.T) {
		t.Parallel()
		text := strings.Replace(goodPolicy, `identity.claims.plan == "premium"`, `identity.claims.plan = "premium"`, 1)
		err := api.Create(t.Context(), object(t, text, "bad-cel"))
		if !apierrors.IsInvalid(err) {
			t.Fatalf("want Invalid, got %v", err)
		}
		wantCause(t, err, "spec.tiers[0].when", ":22: ")
	})
	t.Run("an edit that breaks a policy is refused, and one that leaves its spec alone is not looked at", func(t *testing.T) {
		t.Parallel()
		policy := object(t, goodPolicy, "edited")
		if err := api.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		rules := []any{map[string]any{"name": "api", "limits": []any{map[string]any{"tier": "gold", "requests": int64(1), "window": "1m"}}}}
		broken := policy.DeepCopy()
		if err := unstructured.SetNestedSlice(broken.Object, rules, "spec", "rules"); err != nil {
			t.Fatal(err)
		}
		err := api.Update(t.Context(), broken)
		if !apierrors.IsInvalid(err) {
			t.Fatalf("want Invalid, got %v", err)
		}
		wantCause(t, err, "spec.rules[0].limits[0].tier", "gold")
		policy.SetLabels(map[string]string{"team": "shop"})
		if err := api.Update(t.Context(), policy); err != nil {
			t.Error(err)
		}
	})
	t.Run("what is probably wrong is a warning", func(t *testing.T) {
		t.Parallel()
		text := strings.Replace(goodPolicy, "requests: 10,", "requests: 0,", 1)
		if err := api.Create(t.Context(), object(t, text, "warned")); err != nil {
			t.Fatal(err)
		}
		if !seen.contain("spec.rules[0].limits[1]") {
			t.Errorf("no warning about requests: 0 in %q", seen.texts)
		}
	})
	t.Run("a store on the loopback is refused", func(t *testing.T) {
		t.Parallel()
		err := api.Create(t.Context(), object(t, strings.Replace(goodStore, "redis.cache.svc", "127.0.0.1", 1), "loopback"))
		if !apierrors.IsInvalid(err) {
			t.Fatalf("want Invalid, got %v", err)
		}
		wantCause(t, err, "spec.external.addresses[0]", "loopback")
	})
	t.Run("allowedNamespaces that would share a store, or mean nothing, are refused", func(t *testing.T) {
		t.Parallel()
		for i, value := range []string{"Some", "{labels: {a: b}}", "7", "All", "{selector: {matchLabels: {a: b}}}"} {
			text := goodStore + "  allowedNamespaces: " + value + "\n"
			if err := api.Create(t.Context(), object(t, text, fmt.Sprintf("forms-%d", i))); err == nil {
				t.Errorf("%s was accepted", value)
			}
		}
		if err := api.Create(t.Context(), object(t, goodStore+"  allowedNamespaces: Same\n", "good-form")); err != nil {
			t.Error(err)
		}
	})
	t.Run("a broken object can still be deleted", func(t *testing.T) {
		t.Parallel()
		policy := object(t, goodPolicy, "deleted")
		if err := api.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		if err := api.Delete(t.Context(), policy); err != nil {
			t.Error(err)
		}
	})
}

// wantCause asks for one cause with the field and a part of its message.
func wantCause(t *testing.T, err error, field, part string) {
	t.Helper()
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Details == nil {
		t.Fatalf("no details in %v", err)
	}
	if !slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == field && strings.Contains(cause.Message, part)
	}) {
		t.Errorf("no cause at %s with %q in %+v", field, part, status.Status().Details.Causes)
	}
}
