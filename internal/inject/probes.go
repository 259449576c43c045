package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// EnvProbes is the sidecar's environment variable with the probes it forwards, a JSON array of Probe:
// /probe/<index> on the admin port runs the probe at that index.
const EnvProbes = "SLUICE_PROBES"

const probePath = "/probe/"

// Probe is a kubelet probe that the sidecar sends in the kubelet's stead. Exactly one of HTTP, TCP and GRPC is set.
type Probe struct {
	// Name is <container>/<liveness, readiness or startup>.
	Name           string     `json:"name"`
	HTTP           *HTTPProbe `json:"http,omitempty"`
	TCP            *TCPProbe  `json:"tcp,omitempty"`
	GRPC           *GRPCProbe `json:"grpc,omitempty"`
	TimeoutSeconds int32      `json:"timeoutSeconds"`
}

// HTTPProbe is a GET that counts as success with a status from 200 to 399.
type HTTPProbe struct {
	Path string `json:"path,omitempty"`
	Port int32  `json:"port"`
	// Scheme is HTTP or HTTPS; certificates are not verified, as the kubelet does not.
	Scheme string `json:"scheme,omitempty"`
	// Host is the Host header where the probe's headers name one.
	Host    string              `json:"host,omitempty"`
	Headers []corev1.HTTPHeader `json:"headers,omitempty"`
}

// TCPProbe succeeds when the port accepts a connection.
type TCPProbe struct {
	Port int32 `json:"port"`
}

// GRPCProbe asks grpc.health.v1.
type GRPCProbe struct {
	Port    int32  `json:"port"`
	Service string `json:"service,omitempty"`
}

// rewriteProbes points every probe of a guarded port at the sidecar and returns what was there, in order.
func rewriteProbes(pod *corev1.Pod, ports []Port) []Probe {
	guarded := make(map[int32]bool, len(ports))
	for _, port := range ports {
		guarded[port.Port] = true
	}
	var probes []Probe
	for container, kind := range everyProbe(pod) {
		probe, port, ok := readProbe(container, kind.probe)
		if !ok || !guarded[port] {
			continue
		}
		probe.Name = container.Name + "/" + kind.name
		kind.probe.ProbeHandler = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: probePath + strconv.Itoa(len(probes)), Port: intstr.FromInt32(AdminPort), Scheme: corev1.URISchemeHTTP,
		}}
		probes = append(probes, probe)
	}
	return probes
}

// restoreProbes puts back what rewriteProbes took.
func restoreProbes(pod *corev1.Pod, probes []Probe) {
	for _, kind := range everyProbe(pod) {
		get := kind.probe.HTTPGet
		if get == nil || get.Port != intstr.FromInt32(AdminPort) {
			continue
		}
		text, ours := strings.CutPrefix(get.Path, probePath)
		index, err := strconv.Atoi(text)
		if !ours || err != nil || index < 0 || index >= len(probes) {
			continue
		}
		kind.probe.ProbeHandler = probes[index].handler()
	}
}

// namedProbe is one probe of a container.
type namedProbe struct {
	name  string
	probe *corev1.Probe
}

// everyProbe walks the probes of all containers that stay, sidecars too, in the pod's order.
func everyProbe(pod *corev1.Pod) func(func(*corev1.Container, namedProbe) bool) {
	return func(yield func(*corev1.Container, namedProbe) bool) {
		for container := range everyContainer(pod) {
			for _, kind := range []namedProbe{
				{"startup", container.StartupProbe}, {"readiness", container.ReadinessProbe}, {"liveness", container.LivenessProbe},
			} {
				if kind.probe != nil && !yield(container, kind) {
					return
				}
			}
		}
	}
}

// everyContainer walks the init containers and then the others.
func everyContainer(pod *corev1.Pod) func(func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				if !yield(&containers[i]) {
					return
				}
			}
		}
	}
}

// readProbe describes a probe that reaches the pod over the network; false for exec and for probes of other hosts.
func readProbe(container *corev1.Container, probe *corev1.Probe) (Probe, int32, bool) {
	description := Probe{TimeoutSeconds: max(probe.TimeoutSeconds, 1)}
	switch {
	case probe.HTTPGet != nil && probe.HTTPGet.Host == "":
		get := probe.HTTPGet
		port, found := resolvePort(container, get.Port)
		description.HTTP = &HTTPProbe{
			Path: "/" + strings.TrimPrefix(get.Path, "/"), Port: port, Scheme: string(get.Scheme), Host: hostHeader(get.HTTPHeaders), Headers: slices.Clone(get.HTTPHeaders),
		}
		return description, port, found
	case probe.TCPSocket != nil && probe.TCPSocket.Host == "":
		port, found := resolvePort(container, probe.TCPSocket.Port)
		description.TCP = &TCPProbe{Port: port}
		return description, port, found
	case probe.GRPC != nil:
		description.GRPC = &GRPCProbe{Port: probe.GRPC.Port}
		if probe.GRPC.Service != nil {
			description.GRPC.Service = *probe.GRPC.Service
		}
		return description, probe.GRPC.Port, true
	default:
		return Probe{}, 0, false
	}
}

func hostHeader(headers []corev1.HTTPHeader) string {
	for _, header := range headers {
		if strings.EqualFold(header.Name, "Host") {
			return header.Value
		}
	}
	return ""
}

// resolvePort turns a port's name into its number.
func resolvePort(container *corev1.Container, port intstr.IntOrString) (int32, bool) {
	if port.Type == intstr.Int {
		return port.IntVal, true
	}
	for _, declared := range container.Ports {
		if declared.Name == port.StrVal {
			return declared.ContainerPort, true
		}
	}
	return 0, false
}

// handler is the probe as the kubelet would send it.
func (p Probe) handler() corev1.ProbeHandler {
	switch {
	case p.HTTP != nil:
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: p.HTTP.Path, Port: intstr.FromInt32(p.HTTP.Port), Scheme: corev1.URIScheme(p.HTTP.Scheme), HTTPHeaders: p.HTTP.Headers,
		}}
	case p.TCP != nil:
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(p.TCP.Port)}}
	default:
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: p.GRPC.Port, Service: &p.GRPC.Service}}
	}
}

func encodeProbes(probes []Probe) (string, error) {
	text, err := json.Marshal(probes)
	if err != nil {
		return "", fmt.Errorf("encode probes: %w", err)
	}
	return string(text), nil
}

// decodeProbes reads what an earlier injection wrote; nothing readable means no probes.
func decodeProbes(sidecar *corev1.Container) []Probe {
	for _, variable := range sidecar.Env {
		var probes []Probe
		if variable.Name == EnvProbes && json.Unmarshal([]byte(variable.Value), &probes) == nil {
			return slices.DeleteFunc(probes, func(p Probe) bool { return p.HTTP == nil && p.TCP == nil && p.GRPC == nil })
		}
	}
	return nil
}
