package inject_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/inject"
)

// How often and how long to ask the API server.
const (
	pause    = 20 * time.Millisecond
	patience = 30 * time.Second
)

// cluster is a real API server with the webhooks of config/webhook in force.
type cluster struct {
	client.Client

	warnings *warnings
}

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

// theCluster is started by the first test that needs it and stopped after the last.
var theCluster struct {
	sync.Once

	cluster *cluster
	err     error
	stop    []func() error
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range slices.Backward(theCluster.stop) {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the cluster:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func shared(t *testing.T) *cluster {
	t.Helper()
	theCluster.Do(func() { theCluster.cluster, theCluster.err = startCluster() })
	if theCluster.err != nil {
		t.Fatalf("start the cluster: %v", theCluster.err)
	}
	return theCluster.cluster
}

func startCluster() (*cluster, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS is not set; see CONTRIBUTING.md, or run make test")
	}
	environment := &envtest.Environment{
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			Paths: []string{filepath.Join("..", "..", "config", "webhook", "mutating.yaml")},
		},
	}
	// Pods without the admission plugin of ServiceAccounts have no token to project.
	environment.ControlPlane.GetAPIServer().Configure().Set("disable-admission-plugins", "NodeRestriction")
	theCluster.stop = append(theCluster.stop, environment.Stop)
	config, err := environment.Start()
	if err != nil {
		return nil, err
	}
	if err := runManager(config, environment.WebhookInstallOptions); err != nil {
		return nil, err
	}
	seen := &warnings{}
	own := rest.CopyConfig(config)
	own.WarningHandler = seen
	direct, err := client.New(own, client.Options{Scheme: scheme.Scheme})
	return &cluster{Client: direct, warnings: seen}, err
}

func runManager(config *rest.Config, options envtest.WebhookInstallOptions) error {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	if err := inject.Setup(mgr, inject.Options{
		SidecarImage: "sluice-sidecar:dev", PushAddress: "sluice-operator.sluice-system.svc:15200", OperatorNamespace: "sluice-system",
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	theCluster.stop = append(theCluster.stop, func() error {
		cancel()
		return <-stopped
	})
	started := mgr.GetWebhookServer().StartedChecker()
	return wait.PollUntilContextTimeout(ctx, pause, patience, true, func(context.Context) (bool, error) { return started(nil) == nil, nil })
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), pause, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	}); err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// namespace makes one; the kubelet's part, the default ServiceAccount, is made too.
func (c *cluster) namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-", Labels: labels}}
	c.create(t, namespace)
	c.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace.Name}})
	return namespace.Name
}

func (c *cluster) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T: %v", object, err)
	}
}

// annotate is kubectl annotate; value "" removes.
func (c *cluster) annotate(t *testing.T, object client.Object, key, value string) {
	t.Helper()
	var wanted any = value
	if value == "" {
		wanted = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: wanted}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatalf("annotate: %v", err)
	}
}

func template(labels, annotations map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "shop", Image: "shop:dev",
			Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}},
		}}},
	}
}

func deployment(namespace string, annotations map[string]string) *appsv1.Deployment {
	labels := map[string]string{"app": "shop"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: namespace, Annotations: annotations},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels, nil)},
	}
}

// podOf is what a controller makes of a template.
func podOf(namespace string, from corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *from.ObjectMeta.DeepCopy(), Spec: *from.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = namespace, "shop-"
	return pod
}

func hasSidecar(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == inject.SidecarName })
}

func enabled() map[string]string {
	return map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectEnabled}
}

func TestNewAnnotatedDeploymentIsGuardedFromItsFirstPod(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, nil)
	shop := deployment(namespace, enabled())
	c.create(t, shop)
	if got := shop.Spec.Template.Annotations[v1alpha1.AnnotationInject]; got != v1alpha1.InjectEnabled {
		t.Fatalf("the template says %q", got)
	}
	if shop.Generation != 1 {
		t.Errorf("generation %d: the first pods would be replaced by a second rollout", shop.Generation)
	}
	pod := podOf(namespace, shop.Spec.Template)
	c.create(t, pod)
	names := make([]string, 0, 2)
	for _, container := range pod.Spec.InitContainers {
		names = append(names, container.Name)
	}
	if !slices.Equal(names, []string{inject.InitName, inject.SidecarName}) {
		t.Errorf("init containers %v", names)
	}
	if got := pod.Spec.Containers[0].ReadinessProbe.HTTPGet.Port.IntValue(); got != int(inject.AdminPort) {
		t.Errorf("the readiness probe goes to port %d", got)
	}
	sidecar := pod.Spec.InitContainers[1]
	if slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, "kube-api-access") }) {
		t.Error("the sidecar holds the pod's token for the API server")
	}
	status, ok := inject.ReadStatus(pod.Annotations)
	if !ok || status.Outcome != inject.Injected || status.Reason != inject.ReasonRedirect {
		t.Errorf("status %+v", status)
	}
}

func TestAnnotatingADeploymentRollsIt(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, nil)
	shop := deployment(namespace, nil)
	c.create(t, shop)
	if len(shop.Spec.Template.Annotations) != 0 {
		t.Fatalf("the template of a Deployment that did not ask has %v", shop.Spec.Template.Annotations)
	}
	c.annotate(t, shop, v1alpha1.AnnotationInject, v1alpha1.InjectEnabled)
	c.annotate(t, shop, v1alpha1.AnnotationPorts, "8080")
	if shop.Generation != 3 || shop.Spec.Template.Annotations[v1alpha1.AnnotationPorts] != "8080" {
		t.Errorf("generation %d, template %v", shop.Generation, shop.Spec.Template.Annotations)
	}
	c.annotate(t, shop, v1alpha1.AnnotationInject, v1alpha1.InjectDisabled)
	if got := shop.Spec.Template.Annotations[v1alpha1.AnnotationInject]; got != v1alpha1.InjectDisabled {
		t.Errorf("after disabling, the template says %q", got)
	}
	c.annotate(t, shop, v1alpha1.AnnotationInject, "")
	if _, stands := shop.Spec.Template.Annotations[v1alpha1.AnnotationInject]; stands {
		t.Error("the template still has the annotation that the Deployment lost")
	}
}

func TestWhatStandsOnTheTemplateWins(t *testing.T) {
	t.Parallel()
	c := shared(t)
	shop := deployment(c.namespace(t, nil), enabled())
	shop.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectDisabled}
	c.create(t, shop)
	c.annotate(t, shop, v1alpha1.AnnotationLogLevel, "debug")
	if got := shop.Spec.Template.Annotations[v1alpha1.AnnotationInject]; got != v1alpha1.InjectDisabled {
		t.Errorf("the template says %q", got)
	}
}

func TestCronJobsAnnotationReachesItsJobs(t *testing.T) {
	t.Parallel()
	c := shared(t)
	from := template(nil, nil)
	from.Spec.RestartPolicy = corev1.RestartPolicyNever
	nightly := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: c.namespace(t, nil), Annotations: enabled()},
		Spec: batchv1.CronJobSpec{
			Schedule:    "0 3 * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: from}},
		},
	}
	c.create(t, nightly)
	if got := nightly.Spec.JobTemplate.Spec.Template.Annotations[v1alpha1.AnnotationInject]; got != v1alpha1.InjectEnabled {
		t.Errorf("the template says %q", got)
	}
}

func TestJobsAnnotationReachesItsTemplateOnlyWhenMade(t *testing.T) {
	t.Parallel()
	c := shared(t)
	from := template(nil, nil)
	from.Spec.RestartPolicy = corev1.RestartPolicyNever
	once := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once", Namespace: c.namespace(t, nil), Annotations: enabled()},
		Spec:       batchv1.JobSpec{Template: from},
	}
	c.create(t, once)
	if got := once.Spec.Template.Annotations[v1alpha1.AnnotationInject]; got != v1alpha1.InjectEnabled {
		t.Errorf("the template says %q", got)
	}
	c.annotate(t, once, v1alpha1.AnnotationLogLevel, "debug")
}

func TestPodsThatDidNotAskAreLeftAlone(t *testing.T) {
	t.Parallel()
	c := shared(t)
	for name, annotations := range map[string]map[string]string{
		"nothing": nil, "disabled": {v1alpha1.AnnotationInject: v1alpha1.InjectDisabled}, "another's": {"example.com/inject": "enabled"},
	} {
		namespace := c.namespace(t, nil)
		pod := podOf(namespace, template(nil, annotations))
		c.create(t, pod)
		if len(pod.Spec.InitContainers) != 0 || pod.Annotations[v1alpha1.AnnotationStatus] != "" {
			t.Errorf("%s: the pod was changed: %v", name, pod.Annotations)
		}
	}
	system := podOf("kube-system", template(nil, enabled()))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "kube-system"}}
	if err := client.IgnoreAlreadyExists(c.Create(t.Context(), account)); err != nil {
		t.Fatal(err)
	}
	c.create(t, system)
	if hasSidecar(system) {
		t.Error("a pod of kube-system was injected")
	}
}

func TestNamespaceLabelAsksForAllButTheDisabled(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, enabled())
	for value, want := range map[string]bool{"": true, v1alpha1.InjectEnabled: true, v1alpha1.InjectDisabled: false} {
		annotations := map[string]string{}
		if value != "" {
			annotations[v1alpha1.AnnotationInject] = value
		}
		pod := podOf(namespace, template(nil, annotations))
		c.create(t, pod)
		if hasSidecar(pod) != want {
			t.Errorf("annotation %q: injected %t, want %t", value, !want, want)
		}
	}
}

func TestBadValueIsAWarningAnEventAndAReason(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, nil)
	shop := deployment(namespace, map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectEnabled, v1alpha1.AnnotationPorts: "http"})
	c.create(t, shop)
	if !c.warnings.contain(`metadata.annotations[sluice.dev/ports]: Invalid value: "http": must be port numbers`) {
		t.Errorf("the Deployment's author was not warned: %q", c.warnings.texts)
	}
	pod := podOf(namespace, shop.Spec.Template)
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(shop, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	c.create(t, pod)
	status, _ := inject.ReadStatus(pod.Annotations)
	if hasSidecar(pod) || status.Outcome != inject.Refused || status.Reason != inject.ReasonInvalidAnnotation {
		t.Errorf("status %+v", status)
	}
	eventually(t, "the event", func() error { return c.hasEvent(t, namespace, shop.UID, inject.ReasonInvalidAnnotation) })
}

func (c *cluster) hasEvent(t *testing.T, namespace string, regarding types.UID, reason inject.Reason) error {
	t.Helper()
	var list eventsv1.EventList
	if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, event := range list.Items {
		if event.Regarding.UID == regarding && event.Reason == string(reason) && event.Type == corev1.EventTypeWarning {
			return nil
		}
	}
	return fmt.Errorf("no event %s among %d", reason, len(list.Items))
}

func TestHostNetworkPodStartsBareWithTheReason(t *testing.T) {
	t.Parallel()
	c := shared(t)
	pod := podOf(c.namespace(t, nil), template(nil, enabled()))
	pod.Spec.HostNetwork = true
	c.create(t, pod)
	status, _ := inject.ReadStatus(pod.Annotations)
	if hasSidecar(pod) || status.Reason != inject.ReasonHostNetwork || status.Message == "" {
		t.Errorf("status %+v", status)
	}
}

// restrictedTemplate is what PodSecurity "restricted" admits.
func restrictedTemplate() corev1.PodTemplateSpec {
	from := template(map[string]string{"app": "shop"}, enabled())
	from.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	from.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return from
}

func TestRestrictedNamespaceTakesTheNamedPortForm(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	c.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: namespace},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "shop"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
		},
	})
	pod := podOf(namespace, restrictedTemplate())
	c.create(t, pod)
	if !hasSidecar(pod) {
		t.Fatalf("pod is bare: %s", pod.Annotations[v1alpha1.AnnotationStatus])
	}
	if got := pod.Spec.Containers[0].Ports[0].Name; got != "" {
		t.Errorf("the application's port is still named %q", got)
	}
}

func TestRestrictedNamespaceWithoutNamedTargetStartsBare(t *testing.T) {
	t.Parallel()
	c := shared(t)
	pod := podOf(c.namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}), restrictedTemplate())
	c.create(t, pod)
	if status, _ := inject.ReadStatus(pod.Annotations); hasSidecar(pod) || status.Reason != inject.ReasonPodSecurity {
		t.Errorf("status %+v", status)
	}
}

func TestDryRunLeavesNoEvent(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, nil)
	pod := podOf(namespace, template(nil, enabled()))
	pod.Name, pod.GenerateName, pod.Spec.HostNetwork = "shop", "", true
	if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if status, _ := inject.ReadStatus(pod.Annotations); status.Reason != inject.ReasonHostNetwork {
		t.Errorf("status %+v", status)
	}
	// A real pod's event comes after whatever the dry run would have caused.
	pod = podOf(namespace, template(nil, enabled()))
	pod.Name, pod.GenerateName, pod.Spec.HostNetwork = "after", "", true
	c.create(t, pod)
	var list eventsv1.EventList
	eventually(t, "the real pod's event", func() error {
		if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil || len(list.Items) > 0 {
			return err
		}
		return io.ErrUnexpectedEOF
	})
	for _, event := range list.Items {
		if event.Regarding.Name != "after" {
			t.Errorf("an event on %s", event.Regarding.Name)
		}
	}
}

func TestApplyingAgainChangesNothing(t *testing.T) {
	t.Parallel()
	c := shared(t)
	namespace := c.namespace(t, nil)
	manifest := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"shop","namespace":%q,"annotations":{"sluice.dev/inject":"enabled"}},
		"spec":{"selector":{"matchLabels":{"app":"shop"}},"template":{"metadata":{"labels":{"app":"shop"}},"spec":{"containers":[{"name":"shop","image":"shop:dev"}]}}}}`, namespace)
	shop := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: namespace}}
	for range 3 {
		patch := client.RawPatch(types.ApplyPatchType, []byte(manifest))
		if err := c.Patch(t.Context(), shop, patch, client.FieldOwner("gitops"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
		if shop.Generation != 1 || shop.Spec.Template.Annotations[v1alpha1.AnnotationInject] != v1alpha1.InjectEnabled {
			t.Fatalf("generation %d, template %v", shop.Generation, shop.Spec.Template.Annotations)
		}
	}
	// What a tool compares: the live object with what applying would make of it.
	diff := shop.DeepCopy()
	if err := c.Patch(t.Context(), diff, client.RawPatch(types.ApplyPatchType, []byte(manifest)), client.FieldOwner("gitops"), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	diff.ManagedFields, shop.ManagedFields = nil, nil
	if text := cmp.Diff(shop, diff); text != "" {
		t.Errorf("server-side diff (-live +applied):\n%s", text)
	}
}

func TestOutcomesAreCounted(t *testing.T) {
	t.Parallel()
	shared(t).create(t, podOf(shared(t).namespace(t, nil), template(nil, enabled())))
	eventually(t, "sluice_injections_total", func() error {
		families, err := metrics.Registry.Gather()
		if err != nil {
			return err
		}
		for _, family := range families {
			if family.GetName() == "sluice_injections_total" && len(family.GetMetric()) > 0 {
				return nil
			}
		}
		return io.ErrUnexpectedEOF
	})
}
