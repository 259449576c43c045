package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Injector changes pods. It is immutable and knows no client.
type Injector struct {
	image       string
	pullPolicy  corev1.PullPolicy
	pushAddress string
}

// NewInjector returns an injector for sidecars of the image that dial pushAddress (host:port) for their rules.
func NewInjector(image string, pullPolicy corev1.PullPolicy, pushAddress string) *Injector {
	return &Injector{image: image, pullPolicy: pullPolicy, pushAddress: pushAddress}
}

// Inject decides and returns the pod as it shall be, and why; the facts are not changed.
// A skipped pod comes back as it was, a refused one with the reason in its annotation.
func (i *Injector) Inject(facts Facts) (*corev1.Pod, Verdict, error) {
	pod := facts.Pod.DeepCopy()
	before := takeBack(pod)
	facts.Pod = pod
	verdict := Decide(facts)
	if verdict.Outcome == Skipped {
		return pod, verdict, nil
	}
	if verdict.Outcome == Injected {
		if err := i.apply(pod, verdict, before); err != nil {
			return nil, verdict, err
		}
	}
	return pod, verdict, writeStatus(pod, verdict)
}

// earlier is what a former injection left in a pod. Others may have changed our containers since,
// such as a registry mirror their image, so they are kept as a base.
type earlier struct {
	init, sidecar *corev1.Container
}

// takeBack removes a former injection from the pod.
func takeBack(pod *corev1.Pod) earlier {
	status, _ := ReadStatus(pod.Annotations)
	delete(pod.Annotations, v1alpha1.AnnotationStatus)
	var found earlier
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, func(container corev1.Container) bool {
		switch container.Name {
		case SidecarName:
			found.sidecar = container.DeepCopy()
		case InitName:
			found.init = container.DeepCopy()
		default:
			return false
		}
		return true
	})
	if found.sidecar == nil {
		return found
	}
	restoreNames(pod, status.Ports)
	restoreProbes(pod, decodeProbes(found.sidecar))
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, isOurVolume)
	return found
}

// apply puts the sidecar in. The order matters: probes are read while ports still have their names.
func (i *Injector) apply(pod *corev1.Pod, verdict Verdict, before earlier) error {
	probes, err := encodeProbes(rewriteProbes(pod, verdict.Ports))
	if err != nil {
		return err
	}
	if verdict.Interception == v1alpha1.InterceptionNamedPort {
		takeNames(pod, verdict.Ports)
	}
	ours := make([]corev1.Container, 0, 2)
	if verdict.Interception == v1alpha1.InterceptionRedirect {
		ours = append(ours, i.initContainer(before.init, verdict))
	}
	ours = append(ours, i.sidecar(before.sidecar, verdict, probes))
	pod.Spec.InitContainers = append(ours, pod.Spec.InitContainers...)
	pod.Spec.Volumes = append(pod.Spec.Volumes, volumes()...)
	return nil
}

// takeNames removes the names of the guarded ports, so that the sidecar alone carries them.
// Lifecycle hooks that use such a name get the number instead.
func takeNames(pod *corev1.Pod, ports []Port) {
	taken := make(map[string]bool, len(ports))
	for _, port := range ports {
		taken[port.Name] = true
	}
	for _, container := range applications(pod) {
		for _, hook := range lifecycleGets(container) {
			if number, found := resolvePort(container, hook.Port); found {
				hook.Port = intstr.FromInt32(number)
			}
		}
		for i := range container.Ports {
			if taken[container.Ports[i].Name] {
				container.Ports[i].Name = ""
			}
		}
	}
}

// restoreNames gives the names back.
func restoreNames(pod *corev1.Pod, ports []Port) {
	names := make(map[int32]string, len(ports))
	for _, port := range ports {
		if port.Listener != 0 {
			names[port.Port] = port.Name
		}
	}
	for _, container := range applications(pod) {
		for i := range container.Ports {
			if port := &container.Ports[i]; port.Name == "" && isTCP(*port) {
				port.Name = names[port.ContainerPort]
			}
		}
	}
}

func lifecycleGets(container *corev1.Container) []*corev1.HTTPGetAction {
	var gets []*corev1.HTTPGetAction
	if container.Lifecycle == nil {
		return nil
	}
	for _, hook := range []*corev1.LifecycleHandler{container.Lifecycle.PostStart, container.Lifecycle.PreStop} {
		if hook != nil && hook.HTTPGet != nil {
			gets = append(gets, hook.HTTPGet)
		}
	}
	return gets
}
