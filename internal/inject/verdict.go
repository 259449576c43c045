package inject

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Outcome says whether the pod gets a sidecar; a metric label.
type Outcome string

// The outcomes.
const (
	// Injected means that the pod gets the sidecar.
	Injected Outcome = "injected"
	// Skipped means that nobody asked for it.
	Skipped Outcome = "skipped"
	// Refused means that somebody asked and can't have it: the pod starts bare.
	Refused Outcome = "refused"
)

// Reason says why; a metric label, and the first word a user sees.
type Reason string

// The reasons.
const (
	// ReasonRedirect, ReasonNamedPort and ReasonDecisions name the form of interception of an injected pod.
	ReasonRedirect  Reason = "Redirect"
	ReasonNamedPort Reason = "NamedPort"
	ReasonDecisions Reason = "DecisionsOnly"

	// ReasonNotRequested means that neither the pod nor its namespace asked.
	ReasonNotRequested Reason = "NotRequested"
	// ReasonDisabled means that the pod says sluice.dev/inject: disabled.
	ReasonDisabled Reason = "Disabled"
	// ReasonSystemNamespace means kube-system or the operator's own namespace.
	ReasonSystemNamespace Reason = "SystemNamespace"

	// ReasonInvalidAnnotation means that an annotation has a value that means nothing.
	ReasonInvalidAnnotation Reason = "InvalidAnnotation"
	// ReasonHostNetwork means that the pod shares the node's network, where a redirect would reach other pods' traffic.
	ReasonHostNetwork Reason = "HostNetwork"
	// ReasonOperatingSystem means that the pod runs on Windows, where there is no sidecar.
	ReasonOperatingSystem Reason = "OperatingSystem"
	// ReasonPodSecurity means that the namespace forbids the redirect and no Service targets the pod by a port's name.
	ReasonPodSecurity Reason = "PodSecurity"
	// ReasonNoPorts means that there is no TCP port to guard.
	ReasonNoPorts Reason = "NoPorts"
	// ReasonPortConflict means that a container uses a port of the sidecar.
	ReasonPortConflict Reason = "PortConflict"
	// ReasonNameConflict means that a container or volume has a name of ours.
	ReasonNameConflict Reason = "NameConflict"
	// ReasonInternalError means that the injector failed; the operator's log says how.
	ReasonInternalError Reason = "InternalError"
)

// Facts are all that a verdict rests on.
type Facts struct {
	// Pod is the pod as its creator wrote it.
	Pod *corev1.Pod
	// Namespace is the pod's namespace.
	Namespace *corev1.Namespace
	// Services are those of the namespace; they matter only where PodSecurity forbids the redirect.
	Services []corev1.Service
	// OperatorNamespace is where the operator runs.
	OperatorNamespace string
}

// Port is a guarded port.
type Port struct {
	// Port is the application's.
	Port int32 `json:"port"`
	// Name is the container port's name, where it has one.
	Name string `json:"name,omitempty"`
	// Listener is the sidecar's port that took the name over; 0 with a redirect.
	Listener int32 `json:"listener,omitempty"`
}

// Verdict is what is to be done with a pod, and why.
type Verdict struct {
	Outcome      Outcome
	Reason       Reason
	Message      string
	Interception string
	// Ports are sorted by number.
	Ports    []Port
	Settings Settings
}

// draft is a verdict on its way through the questions.
type draft struct {
	Facts
	settings     Settings
	settingsErr  error
	interception string
	ports        []Port
}

// question answers with a verdict that ends the matter, or nil to go on.
type question func(*draft) *Verdict

// Decide asks the questions in order; the first answer counts, and a pod that passes all is injected.
func Decide(facts Facts) Verdict {
	settings, errs := ParseSettings(facts.Pod.Annotations)
	d := &draft{Facts: facts, settings: settings, settingsErr: errs.ToAggregate()}
	for _, ask := range []question{
		isSystemNamespace, isDisabled, isNotRequested, hasInvalidAnnotation, usesHostNetwork, runsOnWindows,
		chooseInterception, choosePorts, hasPortConflict, hasNameConflict,
	} {
		if verdict := ask(d); verdict != nil {
			return *verdict
		}
	}
	return Verdict{
		Outcome: Injected, Reason: reasonOf(d.interception), Interception: d.interception, Ports: d.ports, Settings: d.settings,
	}
}

func reasonOf(interception string) Reason {
	switch interception {
	case v1alpha1.InterceptionNamedPort:
		return ReasonNamedPort
	case v1alpha1.InterceptionNone:
		return ReasonDecisions
	default:
		return ReasonRedirect
	}
}

func skip(reason Reason) *Verdict { return &Verdict{Outcome: Skipped, Reason: reason} }

func refuse(reason Reason, format string, args ...any) *Verdict {
	return &Verdict{Outcome: Refused, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func isSystemNamespace(d *draft) *Verdict {
	if d.Namespace.Name == "kube-system" || d.Namespace.Name == d.OperatorNamespace {
		return skip(ReasonSystemNamespace)
	}
	return nil
}

func isDisabled(d *draft) *Verdict {
	if d.settings.Inject == v1alpha1.InjectDisabled {
		return skip(ReasonDisabled)
	}
	return nil
}

func isNotRequested(d *draft) *Verdict {
	if !Asked(d.Pod, d.Namespace) {
		return skip(ReasonNotRequested)
	}
	return nil
}

// Asked tells whether a sidecar was asked for, on the pod or else on its namespace, and not declined on the pod.
// A value that means nothing asks, too: its author wanted something.
func Asked(pod *corev1.Pod, namespace *corev1.Namespace) bool {
	if value, onPod := pod.Annotations[v1alpha1.AnnotationInject]; onPod {
		return value != v1alpha1.InjectDisabled
	}
	return namespace.Labels[v1alpha1.AnnotationInject] == v1alpha1.InjectEnabled
}

func hasInvalidAnnotation(d *draft) *Verdict {
	if d.settingsErr != nil {
		return refuse(ReasonInvalidAnnotation, "%v", d.settingsErr)
	}
	return nil
}

func usesHostNetwork(d *draft) *Verdict {
	if d.Pod.Spec.HostNetwork {
		return refuse(ReasonHostNetwork, "the pod uses the node's network, where its traffic can't be told from others'")
	}
	return nil
}

func runsOnWindows(d *draft) *Verdict {
	spec := &d.Pod.Spec
	if spec.OS != nil && spec.OS.Name == corev1.Windows || spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows) {
		return refuse(ReasonOperatingSystem, "the sidecar runs on Linux only")
	}
	return nil
}

// labelEnforce is the label by which PodSecurity admission learns what a namespace enforces.
const labelEnforce = "pod-security.kubernetes.io/enforce"

// forbidsRedirect tells whether the namespace's PodSecurity level forbids NET_ADMIN.
func forbidsRedirect(namespace *corev1.Namespace) bool {
	level := namespace.Labels[labelEnforce]
	return level == "baseline" || level == "restricted"
}

// NeedsServices tells whether Facts.Services matter for the pod.
func NeedsServices(pod *corev1.Pod, namespace *corev1.Namespace) bool {
	return pod.Annotations[v1alpha1.AnnotationInterception] == "" && forbidsRedirect(namespace)
}

func chooseInterception(d *draft) *Verdict {
	switch {
	case d.settings.Interception != "":
		d.interception = d.settings.Interception
	case !forbidsRedirect(d.Namespace):
		d.interception = v1alpha1.InterceptionRedirect
	case targetedByName(d.Pod, d.Services):
		d.interception = v1alpha1.InterceptionNamedPort
	default:
		return refuse(ReasonPodSecurity, "the namespace enforces PodSecurity %q, which forbids the redirect, and no Service "+
			"targets a port of the pod by its name; name the port, or choose with %s",
			d.Namespace.Labels[labelEnforce], v1alpha1.AnnotationInterception)
	}
	return nil
}

// targetedByName tells whether a Service that selects the pod targets one of its TCP ports by the port's name.
func targetedByName(pod *corev1.Pod, services []corev1.Service) bool {
	names := make(map[string]bool)
	for _, container := range applications(pod) {
		for _, port := range container.Ports {
			names[port.Name] = port.Name != "" && isTCP(port)
		}
	}
	for _, service := range services {
		selector := service.Spec.Selector
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			continue
		}
		if slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
			return port.TargetPort.Type == intstr.String && names[port.TargetPort.StrVal]
		}) {
			return true
		}
	}
	return false
}

func choosePorts(d *draft) *Verdict {
	if d.interception == v1alpha1.InterceptionNone {
		return nil
	}
	d.ports = guardedPorts(d.Pod, d.settings.Ports)
	if d.interception == v1alpha1.InterceptionNamedPort {
		d.ports = slices.DeleteFunc(d.ports, func(port Port) bool { return port.Name == "" })
		for i := range d.ports {
			d.ports[i].Listener = FirstNamedPort + int32(i)
		}
	}
	switch {
	case len(d.ports) == 0 && d.interception == v1alpha1.InterceptionNamedPort:
		return refuse(ReasonNoPorts, "no guarded TCP port has a name that the sidecar could take over; name the container's port")
	case len(d.ports) == 0:
		return refuse(ReasonNoPorts, "no container declares a TCP port; declare it, or name it with %s", v1alpha1.AnnotationPorts)
	case len(d.ports) > maxPorts:
		return refuse(ReasonNoPorts, "%d TCP ports are more than the %d that one sidecar guards; choose with %s",
			len(d.ports), maxPorts, v1alpha1.AnnotationPorts)
	}
	return nil
}

// guardedPorts are the chosen ports, or else the TCP ports that the applications declare; sorted, without duplicates.
func guardedPorts(pod *corev1.Pod, chosen []int32) []Port {
	names := make(map[int32]string)
	for _, container := range applications(pod) {
		for _, port := range container.Ports {
			if isTCP(port) && names[port.ContainerPort] == "" {
				names[port.ContainerPort] = port.Name
			}
		}
	}
	numbers := chosen
	if numbers == nil {
		for number := range names {
			numbers = append(numbers, number)
		}
		slices.Sort(numbers)
	}
	ports := make([]Port, 0, len(numbers))
	for _, number := range numbers {
		ports = append(ports, Port{Port: number, Name: names[number]})
	}
	return ports
}

// hasPortConflict keeps applications off the sidecar's ports.
func hasPortConflict(d *draft) *Verdict {
	reserved := map[int32]bool{RedirectPort: true, AdminPort: true, DebugPort: true, DecisionPort: true}
	for _, port := range d.ports {
		reserved[port.Listener] = true
	}
	declared := slices.Concat(d.ports, guardedPorts(d.Pod, nil))
	for _, port := range declared {
		if reserved[port.Port] {
			return refuse(ReasonPortConflict, "port %d is the sidecar's own", port.Port)
		}
	}
	return nil
}

func hasNameConflict(d *draft) *Verdict {
	ours := []string{SidecarName, InitName}
	for _, container := range d.Pod.Spec.Containers {
		if slices.Contains(ours, container.Name) {
			return refuse(ReasonNameConflict, "a container is named %s", container.Name)
		}
	}
	for _, volume := range d.Pod.Spec.Volumes {
		if isOurVolume(volume) {
			return refuse(ReasonNameConflict, "a volume is named %s", volume.Name)
		}
	}
	return nil
}

// applications are the containers whose ports are guarded: not sidecars, neither native ones nor those of meshes.
func applications(pod *corev1.Pod) []*corev1.Container {
	containers := make([]*corev1.Container, 0, len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		if container.Name != "istio-proxy" && container.Name != "linkerd-proxy" {
			containers = append(containers, container)
		}
	}
	return containers
}

func isTCP(port corev1.ContainerPort) bool {
	return port.Protocol == "" || port.Protocol == corev1.ProtocolTCP
}
