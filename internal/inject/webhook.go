package inject

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Paths of the webhooks on the manager's webhook server.
const (
	PathPods      = "/inject-pods"
	PathWorkloads = "/inject-workloads"
)

// Options say what the injector puts into pods.
type Options struct {
	// SidecarImage is the image of the sidecar and of the init container.
	SidecarImage string
	// PullPolicy is theirs; "" is IfNotPresent.
	PullPolicy corev1.PullPolicy
	// PushAddress is where sidecars dial for rules: host:port.
	PushAddress string
	// OperatorNamespace is where the operator runs; nothing is injected there.
	OperatorNamespace string
	// FailClosed refuses pods that the injector fails on, instead of letting them start bare.
	FailClosed bool
}

// +kubebuilder:rbac:groups="",resources=namespaces;services,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Setup registers both webhooks and the metric sluice_injections_total.
func Setup(mgr ctrl.Manager, options Options) error {
	if options.SidecarImage == "" || options.PushAddress == "" {
		return errors.New("inject: the sidecar's image and the push address are required")
	}
	counter, err := register(prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_injections_total",
		Help: "Pods that the injector looked at, by what it did and why.",
	}, []string{"outcome", "reason"}))
	if err != nil {
		return err
	}
	recorder := mgr.GetEventRecorder("sluice-injector")
	server := mgr.GetWebhookServer()
	server.Register(PathPods, &admission.Webhook{Handler: &podHandler{
		injector:   NewInjector(options.SidecarImage, cmp.Or(options.PullPolicy, corev1.PullIfNotPresent), options.PushAddress),
		options:    options,
		cached:     mgr.GetClient(),
		live:       mgr.GetAPIReader(),
		recorder:   recorder,
		injections: counter,
	}})
	server.Register(PathWorkloads, &admission.Webhook{Handler: &workloadHandler{recorder: recorder}})
	return nil
}

// register returns the collector, or the equal one that a former Setup of this process registered.
func register(counter *prometheus.CounterVec) (*prometheus.CounterVec, error) {
	err := metrics.Registry.Register(counter)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, same := already.ExistingCollector.(*prometheus.CounterVec); same {
			return existing, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("inject: register metric: %w", err)
	}
	return counter, nil
}

// podHandler injects new pods.
type podHandler struct {
	injector *Injector
	options  Options
	// cached costs the API server nothing and may lag behind; live is asked where that would matter.
	cached, live client.Reader
	recorder     events.EventRecorder
	injections   *prometheus.CounterVec
}

// Handle answers with the patch that injects the sidecar.
func (h *podHandler) Handle(ctx context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode pod: %w", err))
	}
	pod.Namespace = cmp.Or(pod.Namespace, req.Namespace)
	injected, verdict, err := h.inject(ctx, pod)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "pod not injected")
		return h.failed(req, pod, err)
	}
	dryRun := req.DryRun != nil && *req.DryRun
	response := patchTyped(pod, injected)
	if !dryRun && (len(response.Patches) > 0 || verdict.Outcome == Skipped) {
		h.injections.WithLabelValues(string(verdict.Outcome), string(verdict.Reason)).Inc()
	}
	if verdict.Outcome != Refused {
		return response
	}
	if !dryRun {
		report(h.recorder, pod, verdict)
	}
	return response.WithWarnings(warning("pod starts without a limiter", string(verdict.Reason)+": "+verdict.Message))
}

// inject asks the cache first. Namespaces and Services are often made in the same breath as their pods, so what
// would leave a pod bare for lack of them is asked of the API server before it is believed.
func (h *podHandler) inject(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, Verdict, error) {
	injected, verdict, err := h.injectFrom(ctx, h.cached, pod)
	if err != nil || verdict.Reason == ReasonNotRequested || verdict.Reason == ReasonPodSecurity {
		return h.injectFrom(ctx, h.live, pod)
	}
	return injected, verdict, nil
}

func (h *podHandler) injectFrom(ctx context.Context, reader client.Reader, pod *corev1.Pod) (*corev1.Pod, Verdict, error) {
	facts := Facts{Pod: pod, Namespace: &corev1.Namespace{}, OperatorNamespace: h.options.OperatorNamespace}
	if err := reader.Get(ctx, client.ObjectKey{Name: pod.Namespace}, facts.Namespace); err != nil {
		return nil, Verdict{}, fmt.Errorf("read namespace: %w", err)
	}
	if NeedsServices(pod, facts.Namespace) {
		var services corev1.ServiceList
		if err := reader.List(ctx, &services, client.InNamespace(pod.Namespace)); err != nil {
			return nil, Verdict{}, fmt.Errorf("list services: %w", err)
		}
		facts.Services = services.Items
	}
	return h.injector.Inject(facts)
}

// failed lets the pod start bare, with the reason on it, or refuses it where the user chose so.
// An answer of "not allowed" would block the pod whatever the webhook's failurePolicy.
func (h *podHandler) failed(req admission.Request, pod *corev1.Pod, cause error) admission.Response {
	h.injections.WithLabelValues(string(Refused), string(ReasonInternalError)).Inc()
	if h.options.FailClosed {
		return admission.Errored(http.StatusInternalServerError, cause)
	}
	bare := pod.DeepCopy()
	verdict := Verdict{Outcome: Refused, Reason: ReasonInternalError, Message: "the injector failed; see the operator's log"}
	if err := writeStatus(bare, verdict); err != nil {
		return admission.Allowed(err.Error())
	}
	if req.DryRun == nil || !*req.DryRun {
		report(h.recorder, pod, verdict)
	}
	return patchTyped(pod, bare).WithWarnings(warning("pod starts without a limiter", verdict.Message))
}

// patchTyped compares what both look like as our type, so that fields that this program does not know stay as they are.
func patchTyped(before, after *corev1.Pod) admission.Response {
	original, err := json.Marshal(before)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	current, err := json.Marshal(after)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(original, current)
}

// report writes an event on the pod's controller, which exists already, or on the pod.
func report(recorder events.EventRecorder, pod *corev1.Pod, verdict Verdict) {
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		regarding = &corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: pod.Namespace, Name: owner.Name, UID: owner.UID,
		}
	}
	if regarding.Name == "" {
		return
	}
	recorder.Eventf(regarding, nil, corev1.EventTypeWarning, string(verdict.Reason), "Inject",
		"pod starts without a limiter: %s", verdict.Message)
}

// warning is one line for the user of kubectl; the API server cuts longer ones.
func warning(what, why string) string {
	const longest = 250
	text := "sluice: " + what + ": " + strings.ReplaceAll(why, "\n", " ")
	return strings.ToValidUTF8(text[:min(len(text), longest)], "")
}

// workloadHandler carries annotations from workloads to their pod templates.
type workloadHandler struct {
	recorder events.EventRecorder
}

// workload is what all kinds of workloads have in common; CronJobs hold their template one level deeper.
type workload struct {
	metav1.PartialObjectMetadata `json:",inline"`

	Spec struct {
		Template    template `json:"template"`
		JobTemplate struct {
			Spec struct {
				Template template `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// template is the part of a pod template that matters here; Metadata is nil where the object has none.
type template struct {
	Metadata *struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

func (t template) annotations() map[string]string {
	if t.Metadata == nil {
		return nil
	}
	return t.Metadata.Annotations
}

// podTemplate returns the template and its place in the object.
func (w *workload) podTemplate(kind string) (template, string) {
	if kind == "CronJob" {
		return w.Spec.JobTemplate.Spec.Template, "/spec/jobTemplate/spec/template"
	}
	return w.Spec.Template, "/spec/template"
}

// Handle answers with the patch of the template's annotations.
func (h *workloadHandler) Handle(_ context.Context, req admission.Request) admission.Response {
	var object, before workload
	if err := json.Unmarshal(req.Object.Raw, &object); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode workload: %w", err))
	}
	if len(req.OldObject.Raw) > 0 {
		if err := json.Unmarshal(req.OldObject.Raw, &before); err != nil {
			return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode former workload: %w", err))
		}
	}
	current, path := object.podTemplate(req.Kind.Kind)
	former, _ := before.podTemplate(req.Kind.Kind)
	annotations, changed := Carry(object.Annotations, current.annotations(), before.Annotations, former.annotations())

	response := admission.Allowed("")
	if changed {
		response = admission.Patched("", annotationPatch(current, path, annotations))
	}
	_, errs := ParseSettings(annotations)
	if len(errs) == 0 {
		return response
	}
	if req.DryRun == nil || !*req.DryRun {
		h.reportInvalid(req, object.UID, errs.ToAggregate())
	}
	for _, err := range errs {
		response = response.WithWarnings(warning("new pods start without a limiter", err.Error()))
	}
	return response
}

// annotationPatch writes the annotations whole; the template's metadata may be absent.
func annotationPatch(current template, path string, annotations map[string]string) jsonpatch.JsonPatchOperation {
	if current.Metadata == nil {
		return jsonpatch.NewOperation("add", path+"/metadata", map[string]any{"annotations": annotations})
	}
	return jsonpatch.NewOperation("add", path+"/metadata/annotations", annotations)
}

func (h *workloadHandler) reportInvalid(req admission.Request, uid types.UID, err error) {
	if req.Name == "" {
		return
	}
	version := metav1.GroupVersion{Group: req.Kind.Group, Version: req.Kind.Version}
	h.recorder.Eventf(&corev1.ObjectReference{
		APIVersion: version.String(), Kind: req.Kind.Kind, Namespace: req.Namespace, Name: req.Name, UID: uid,
	}, nil, corev1.EventTypeWarning, string(ReasonInvalidAnnotation), "Inject", "new pods start without a limiter: %v", err)
}
