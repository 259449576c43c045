package inject

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Names in injected pods.
const (
	// SidecarName is the native sidecar's name.
	SidecarName = "sluice-sidecar"
	// InitName is the name of the init container that sets the redirect.
	InitName = "sluice-init"
	// StateVolume is the sidecar's memory-backed volume.
	StateVolume = "sluice-state"
	// PushVolume holds the token and the CA for the push stream.
	PushVolume = "sluice-push"
	// CAConfigMap is the ConfigMap with the operator's CA, one in each namespace.
	CAConfigMap = "sluice-ca"
	// CAKey is its entry.
	CAKey = "ca.crt"
	// TokenAudience is the audience of the token that sidecars present.
	TokenAudience = "sluice"

	stateDir = "/var/run/sluice/state"
	// pushDir is where the API server mounts the pod's own token into containers that mount nothing there. Ours holds
	// the token for the push stream alone, so that what reads strangers' requests has no access to the API server.
	pushDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Ports of the sidecar.
const (
	// RedirectPort takes redirected traffic.
	RedirectPort int32 = 15100
	// FirstNamedPort is the first of the listeners that took over a port's name.
	FirstNamedPort int32 = 15101
	// DecisionPort is the decision API, on loopback.
	DecisionPort int32 = 15180
	// AdminPort serves /metrics, /healthz, /readyz and the forwarded probes.
	AdminPort int32 = 15190
	// DebugPort serves /debug/rules, on loopback.
	DebugPort int32 = 15191
)

const (
	tokenSeconds int64 = 3600
	// sidecarUser is the uid of distroless's nonroot.
	sidecarUser int64 = 65532
	// onMissingRules is the default of sluice.dev/on-missing-rules.
	onMissingRules = "allow"
)

// sidecar returns the native sidecar; what others changed in the one from before stays.
func (i *Injector) sidecar(before *corev1.Container, verdict Verdict, probes string) corev1.Container {
	container := before
	if container == nil {
		container = i.newSidecar(verdict)
	}
	container.Args = i.sidecarArgs(verdict)
	container.Env = setEnv(container.Env, EnvProbes, probes)
	container.Ports = sidecarPorts(verdict.Ports)
	return *container
}

func (i *Injector) newSidecar(verdict Verdict) *corev1.Container {
	return &corev1.Container{
		Name:            SidecarName,
		Image:           i.image,
		ImagePullPolicy: i.pullPolicy,
		RestartPolicy:   new(corev1.ContainerRestartPolicyAlways),
		Resources:       sidecarResources(verdict.Settings),
		SecurityContext: hardened(sidecarUser),
		VolumeMounts: []corev1.VolumeMount{
			{Name: StateVolume, MountPath: stateDir},
			{Name: PushVolume, MountPath: pushDir, ReadOnly: true},
		},
		// Applications start only once the startup probe has passed, so their first request is already guarded.
		StartupProbe:             ready(1, 120),
		ReadinessProbe:           ready(5, 3),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func ready(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(AdminPort)}},
		PeriodSeconds:    period,
		TimeoutSeconds:   2,
		FailureThreshold: failures,
	}
}

func (i *Injector) sidecarArgs(verdict Verdict) []string {
	settings := verdict.Settings
	missing := settings.OnMissingRules
	if missing == "" {
		missing = onMissingRules
	}
	args := []string{
		"--push-address=" + i.pushAddress,
		"--push-ca-file=" + pushDir + "/" + CAKey,
		"--push-token-file=" + pushDir + "/token",
		"--state-dir=" + stateDir,
		"--on-missing-rules=" + missing,
		"--interception=" + verdict.Interception,
	}
	if verdict.Interception == v1alpha1.InterceptionNamedPort {
		args = append(args, "--named-ports="+namedPorts(verdict.Ports))
	}
	if settings.LogLevel != "" {
		args = append(args, "--log-level="+settings.LogLevel)
	}
	if settings.DrainTimeout != 0 {
		args = append(args, "--drain-timeout="+settings.DrainTimeout.String())
	}
	return args
}

// namedPorts is a list of listener=application, such as "15101=8080,15102=9090".
func namedPorts(ports []Port) string {
	pairs := make([]string, 0, len(ports))
	for _, port := range ports {
		pairs = append(pairs, fmt.Sprintf("%d=%d", port.Listener, port.Port))
	}
	return strings.Join(pairs, ",")
}

// sidecarPorts declares the admin port, and the names that the sidecar took over.
func sidecarPorts(ports []Port) []corev1.ContainerPort {
	declared := []corev1.ContainerPort{{Name: "sluice-admin", ContainerPort: AdminPort, Protocol: corev1.ProtocolTCP}}
	for _, port := range ports {
		if port.Listener != 0 {
			declared = append(declared, corev1.ContainerPort{Name: port.Name, ContainerPort: port.Listener, Protocol: corev1.ProtocolTCP})
		}
	}
	return declared
}

func sidecarResources(settings Settings) corev1.ResourceRequirements {
	if settings.Resources != nil {
		return *settings.Resources
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("48Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
}

// initContainer returns the container that sets the redirect and ends. It alone has NET_ADMIN, and
// it runs as root because the kernel gives capabilities of a container to no other user.
func (i *Injector) initContainer(before *corev1.Container, verdict Verdict) corev1.Container {
	container := before
	if container == nil {
		security := hardened(0)
		security.RunAsNonRoot = new(false)
		security.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		container = &corev1.Container{
			Name:            InitName,
			Image:           i.image,
			ImagePullPolicy: i.pullPolicy,
			SecurityContext: security,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
				},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
			},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}
	}
	numbers := make([]string, 0, len(verdict.Ports))
	for _, port := range verdict.Ports {
		numbers = append(numbers, strconv.Itoa(int(port.Port)))
	}
	container.Args = []string{"init", "--ports=" + strings.Join(numbers, ","), "--to=" + strconv.Itoa(int(RedirectPort))}
	return *container
}

// hardened is a security context that PodSecurity "restricted" accepts where user is not 0.
func hardened(user int64) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser:                new(user),
		RunAsGroup:               new(user),
		RunAsNonRoot:             new(true),
		Privileged:               new(false),
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func setEnv(env []corev1.EnvVar, name, value string) []corev1.EnvVar {
	for i := range env {
		if env[i].Name == name {
			env[i].Value = value
			return env
		}
	}
	return append(env, corev1.EnvVar{Name: name, Value: value})
}

func isOurVolume(volume corev1.Volume) bool {
	return volume.Name == StateVolume || volume.Name == PushVolume
}

// volumes are the sidecar's: its state in memory, and the token and CA for the push stream.
// The ConfigMap is optional, so that a pod starts before the operator wrote it; the sidecar reads it again.
func volumes() []corev1.Volume {
	return []corev1.Volume{
		{Name: StateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("16Mi")),
		}}},
		{Name: PushVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(0o444)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: TokenAudience, ExpirationSeconds: new(tokenSeconds), Path: "token",
				}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: CAConfigMap},
					Items:                []corev1.KeyToPath{{Key: CAKey, Path: CAKey}},
					Optional:             new(true),
				}},
			},
		}}},
	}
}
