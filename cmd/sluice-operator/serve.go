package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/internal/admission"
	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/internal/inject"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const certSecret = "sluice-webhook-cert" //nolint:gosec // a Secret's name

const handshakeTimeout = 5 * time.Second

func serve(ctx context.Context, o *options) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("--log-level %q is not debug, info, warn or error; %w", o.logLevel, errUsage)
	}
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	mgr, err := newManager(o)
	if err != nil {
		return err
	}
	p, err := newPushing(ctx, mgr, o)
	if err != nil {
		return err
	}
	if err := setupControllers(mgr, o, p); err != nil {
		return err
	}
	certs, err := setupCertificates(mgr, o)
	if err != nil {
		return err
	}
	ready := readiness{certs}
	if err := mgr.AddHealthzCheck("alive", func(*http.Request) error { return nil }); err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	if err := mgr.AddReadyzCheck("certificates", ready.check); err != nil {
		return fmt.Errorf("readiness check: %w", err)
	}
	if err := mgr.Add(everywhere(func(ctx context.Context) error { return serveWithCertificates(ctx, mgr, o, p.server, certs) })); err != nil {
		return fmt.Errorf("add the push server: %w", err)
	}
	return mgr.Start(ctx)
}

// everywhere is a runnable of every replica, not of the leader alone.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

func (everywhere) NeedLeaderElection() bool { return false }

var _ manager.LeaderElectionRunnable = everywhere(nil)

func newManager(o *options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	labelled, err := labels.NewRequirement(v1alpha1.LabelUse, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	kept, err := labels.NewRequirement(controllers.LabelPolicy, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: o.metrics},
		HealthProbeBindAddress: o.health,
		LeaderElection:         o.leaderElect, LeaderElectionID: "sluice-operator", LeaderElectionNamespace: o.namespace,
		LeaderElectionReleaseOnCancel: true,
		WebhookServer:                 webhook.NewServer(webhook.Options{Port: o.webhookPort, CertDir: o.certDir}),
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			// The operator reads no Secret but those that are meant for it, and no ControllerRevision but its own.
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}:             {Label: labels.NewSelector().Add(*labelled)},
				&appsv1.ControllerRevision{}: {Label: labels.NewSelector().Add(*kept)},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return mgr, nil
}

// pushing is what brings rules and keys to sidecars.
type pushing struct {
	server  *push.Server
	keySets *controllers.KeySets
	changed <-chan event.GenericEvent // namespaces with news
}

func newPushing(ctx context.Context, mgr ctrl.Manager, o *options) (*pushing, error) {
	kube, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	m, err := push.NewMetrics(metrics.Registry)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	changes := push.NewChanges()
	keySets := controllers.NewKeySets(ctx, &http.Transport{TLSHandshakeTimeout: handshakeTimeout}, o.jwksAllowed, clock.Real(), changes.Notify)
	options := push.Options{
		Authenticator: push.NewReviewer(kube, clock.Real()), Clock: clock.Real(), Metrics: m,
		Changed: changes.Notify, Refresh: func(p push.Pod, r *pushv1.KeyRefresh) { keySets.Refresh(p.Namespace, r.GetIssuer()) },
	}
	if o.verifyPeer {
		options.PeerAddress = func(ctx context.Context, p push.Pod) string { return addressOf(ctx, mgr.GetClient(), p) }
	}
	changed := make(chan event.GenericEvent)
	err = mgr.Add(everywhere(func(ctx context.Context) error {
		changes.Run(ctx, func(namespace string) {
			notice := event.GenericEvent{Object: &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}}
			select {
			case changed <- notice:
			case <-ctx.Done():
			}
		})
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("add notices: %w", err)
	}
	return &pushing{push.NewServer(options), keySets, changed}, nil
}

// addressOf is "" where the pod's address is not known yet.
func addressOf(ctx context.Context, c client.Reader, p push.Pod) string {
	var pod corev1.Pod
	if err := c.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, &pod); err != nil || pod.UID != p.UID {
		return ""
	}
	return pod.Status.PodIP
}

func setupControllers(mgr ctrl.Manager, o *options, p *pushing) error {
	namespaces := &controllers.Namespaces{
		Client: mgr.GetClient(), Pusher: p.server, KeySets: p.keySets, Recorder: mgr.GetEventRecorder("sluice"), OperatorNamespace: o.namespace,
		CA: func() ([]byte, error) { return os.ReadFile(filepath.Join(o.certDir, "ca.crt")) }, Changed: p.changed,
	}
	if err := namespaces.Setup(mgr); err != nil {
		return err
	}
	stores := &controllers.Stores{
		Client: mgr.GetClient(), Prober: controllers.RedisProber{}, Recorder: mgr.GetEventRecorder("sluice"), Image: o.storeImage,
	}
	return stores.Setup(mgr)
}

// setupCertificates rotates the certificate of webhooks and push server in a Secret; the channel closes when it is in use.
func setupCertificates(mgr ctrl.Manager, o *options) (<-chan struct{}, error) {
	key := types.NamespacedName{Namespace: o.namespace, Name: certSecret}
	if err := mgr.Add(everywhere((&certificateFiles{reader: mgr.GetAPIReader(), key: key, dir: o.certDir, clock: clock.Real()}).Start)); err != nil {
		return nil, fmt.Errorf("add certificate files: %w", err)
	}
	ready := make(chan struct{})
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey: key, CertDir: o.certDir, CAName: "sluice", CAOrganization: "sluice", IsReady: ready,
		DNSName:       "sluice-webhook." + o.namespace + ".svc",
		ExtraDNSNames: []string{"sluice-operator." + o.namespace + ".svc"},
		Webhooks: []rotator.WebhookInfo{
			{Name: "sluice-injector", Type: rotator.Mutating}, {Name: "sluice-validator", Type: rotator.Validating},
		},
		FieldOwner: "sluice",
	})
	if err != nil {
		return nil, fmt.Errorf("certificate rotation: %w", err)
	}
	return ready, nil
}

// serveWithCertificates starts what needs the certificate once it is there.
func serveWithCertificates(ctx context.Context, mgr ctrl.Manager, o *options, server *push.Server, certs <-chan struct{}) error {
	select {
	case <-certs:
	case <-ctx.Done():
		return nil
	}
	err := inject.Setup(mgr, inject.Options{
		SidecarImage: o.sidecarImage, PullPolicy: corev1.PullPolicy(o.pullPolicy), PushAddress: o.pushAddress, OperatorNamespace: o.namespace,
	})
	if err != nil {
		return fmt.Errorf("injector: %w", err)
	}
	admission.Setup(mgr)
	watcher, err := certwatcher.New(filepath.Join(o.certDir, "tls.crt"), filepath.Join(o.certDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("load certificate: %w", err)
	}
	if err := mgr.Add(watcher); err != nil {
		return fmt.Errorf("watch certificate: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.pushListen)
	if err != nil {
		return fmt.Errorf("listen for sidecars: %w", err)
	}
	return server.Serve(ctx, l, watcher.GetCertificate)
}

// readiness waits for the certificate.
type readiness struct{ certs <-chan struct{} }

func (r readiness) check(*http.Request) error {
	select {
	case <-r.certs:
		return nil
	default:
		return errNoCertificate
	}
}
