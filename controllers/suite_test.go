package controllers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// The whole suite shares one API server and one operator; each test has namespaces of its own.
var (
	api     client.Client
	kube    kubernetes.Interface
	cached  client.Client // the operator's own
	keySets *controllers.KeySets
	pushAt  string
	pushTLS *tls.Config
)

const operatorNamespace = "sluice-system"

func TestMain(m *testing.M) {
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set; see CONTRIBUTING.md, or run make test")
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join("..", "config", "crd", "bases")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 2 * time.Minute, // on a busy machine
	}
	config, err := environment.Start()
	if err != nil {
		return 1, fmt.Errorf("start the API server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		err = errors.Join(err, environment.Stop())
	}()
	config.QPS, config.Burst = -1, 0
	ctrl.SetLogger(logr.Discard())
	if err := startOperator(ctx, config); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func startOperator(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	var err error
	if api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}}); err != nil {
		return err
	}
	labelled, err := labels.NewRequirement(v1alpha1.LabelUse, selection.Exists, nil)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.NewSelector().Add(*labelled)}}},
	})
	if err != nil {
		return err
	}
	cached = mgr.GetClient()
	if err := startControllers(ctx, mgr); err != nil {
		return err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil {
			panic(err)
		}
	}()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the cache is not filled")
	}
	return nil
}

func startControllers(ctx context.Context, mgr manager.Manager) error {
	changes := push.NewChanges()
	changed := make(chan event.GenericEvent)
	go changes.Run(ctx, func(namespace string) {
		select {
		case changed <- event.GenericEvent{Object: &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}}:
		case <-ctx.Done():
		}
	})
	metrics, err := push.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return err
	}
	keySets = controllers.NewKeySets(ctx, &http.Transport{}, nil, clock.Real(), changes.Notify)
	server := push.NewServer(push.Options{
		Authenticator: push.NewReviewer(kube, clock.Real()), Clock: clock.Real(), Metrics: metrics, Changed: changes.Notify,
		Refresh: func(push.Pod, *pushv1.KeyRefresh) {},
	})
	authority, err := servePush(ctx, server)
	if err != nil {
		return err
	}
	namespaces := &controllers.Namespaces{
		Client: mgr.GetClient(), Pusher: server, KeySets: keySets, Recorder: mgr.GetEventRecorder("sluice"), OperatorNamespace: operatorNamespace,
		CA: func() ([]byte, error) { return authority, nil }, Changed: changed,
	}
	stores := &controllers.Stores{Client: mgr.GetClient(), Prober: controllers.RedisProber{}, Recorder: mgr.GetEventRecorder("sluice"), Image: "redis:test"}
	return errors.Join(namespaces.Setup(mgr), stores.Setup(mgr))
}

// servePush borrows the certificate for 127.0.0.1 of an HTTPS test server, and returns its PEM.
func servePush(ctx context.Context, server *push.Server) ([]byte, error) {
	lender := httptest.NewTLSServer(nil)
	pair, leaf := lender.TLS.Certificates[0], lender.Certificate()
	lender.Close()
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	pushTLS = &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	pushAt = l.Addr().String()
	go func() {
		err := server.Serve(ctx, l, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil })
		if err != nil {
			panic(err)
		}
	}()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), nil
}

// eventually waits for a condition, which says what it saw instead.
func eventually(t *testing.T, what string, met func() (bool, string)) {
	t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := met()
		if ok {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("want %s; saw %s", what, seen)
		case <-tick.C:
		}
	}
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T: %v", o, err)
		}
	}
}

// namespace makes a namespace with the ServiceAccount that the tokens of its pods belong to.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	create(t, ns)
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "default"}})
	return ns.Name
}

// policy admits ten a minute, in mode Local, which needs no store.
func policy(ns, name string) *v1alpha1.RateLimitPolicy {
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Spec.Mode = v1alpha1.ModeLocal
	p.Spec.Rules = []v1alpha1.Rule{{Name: "api", Limits: []v1alpha1.Limit{{Requests: new(int64(10)), Window: "1m"}}}}
	return p
}

// edit changes a policy's spec.
func edit(t *testing.T, p *v1alpha1.RateLimitPolicy, change func(*v1alpha1.RateLimitPolicySpec)) {
	t.Helper()
	before := p.DeepCopy()
	change(&p.Spec)
	if err := api.Patch(t.Context(), p, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// wantCondition waits for a condition of the policy's present generation and returns its message.
func wantCondition(t *testing.T, p *v1alpha1.RateLimitPolicy, kind string, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var now v1alpha1.RateLimitPolicy
	eventually(t, fmt.Sprintf("%s %s/%s", kind, status, reason), func() (bool, string) {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
			return false, err.Error()
		}
		c := meta.FindStatusCondition(now.Status.Conditions, kind)
		ok := c != nil && c.Status == status && c.Reason == reason && c.ObservedGeneration == now.Generation
		return ok, fmt.Sprintf("%+v", now.Status.Conditions)
	})
	return meta.FindStatusCondition(now.Status.Conditions, kind).Message
}

func summary(t *testing.T, p *v1alpha1.RateLimitPolicy) string {
	t.Helper()
	var now v1alpha1.RateLimitPolicy
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
		t.Fatal(err)
	}
	if now.Status.Sidecars == nil {
		return ""
	}
	return now.Status.Sidecars.Summary
}

// bare makes a running pod that asked for a sidecar and has none.
func bare(t *testing.T, ns, name string, owners ...metav1.OwnerReference) *corev1.Pod {
	t.Helper()
	return run(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, OwnerReferences: owners, Labels: map[string]string{"app": "shop"},
			Annotations: map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectEnabled},
		},
		Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app", Image: "shop"}}},
	})
}

// guarded makes a running pod whose sidecar started.
func guarded(t *testing.T, ns, name string, owners ...metav1.OwnerReference) *corev1.Pod {
	t.Helper()
	return run(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, OwnerReferences: owners, Labels: map[string]string{"app": "shop"},
			Annotations: map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectEnabled},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "default",
			InitContainers:     []corev1.Container{{Name: "sluice-sidecar", Image: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
			Containers:         []corev1.Container{{Name: "app", Image: "shop"}},
		},
	})
}

// run plays the kubelet.
func run(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	create(t, pod)
	pod.Status.Phase = corev1.PodRunning
	for _, c := range pod.Spec.InitContainers {
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	if err := api.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// kill removes a pod at once, as the kubelet does in the end.
func kill(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// token asks the API server for a token; of a pod, unless there is none.
func token(t *testing.T, ns string, pod *corev1.Pod, audience string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	made, err := kube.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// deployment makes a Deployment with one ReplicaSet, and returns the reference that its pods carry.
func deployment(t *testing.T, ns, name string) metav1.OwnerReference {
	t.Helper()
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "shop"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}
	create(t, d)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name + "-1", OwnerReferences: []metav1.OwnerReference{owner("Deployment", name, d.UID)}},
		Spec:       appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}
	create(t, rs)
	return owner("ReplicaSet", rs.Name, rs.UID)
}

func owner(kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: new(true)}
}

var clockOfTests = clock.Real()
