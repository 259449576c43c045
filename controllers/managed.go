package controllers

import (
	"context"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	storeUser       = int64(65532)
	configEntry     = "redis.conf"
	configDir       = "/etc/sluice"
	dataDir         = "/data"
	defaultMemory   = "256Mi"
	overheadPercent = 150 // of memory: fragmentation, buffers and the process itself
)

// applyManaged applies the Secret, Service and StatefulSet of a managed store. Its password stands only in the Secret, as
// part of the server's configuration: never in the pod's spec.
func (s *Stores) applyManaged(ctx context.Context, store *v1alpha1.RateLimitStore) error {
	if err := s.createSecret(ctx, store); err != nil {
		return err
	}
	labels := map[string]string{"app.kubernetes.io/name": "sluice-store", "app.kubernetes.io/instance": store.Name}
	owner := metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("RateLimitStore").
		WithName(store.Name).WithUID(store.UID).WithController(true).WithBlockOwnerDeletion(true)
	service := corev1ac.Service(managedName(store), store.Namespace).WithLabels(labels).WithOwnerReferences(owner).
		WithSpec(corev1ac.ServiceSpec().WithSelector(labels).
			WithPorts(corev1ac.ServicePort().WithName("redis").WithPort(redisPort).WithTargetPort(intstr.FromInt32(redisPort))))
	if err := s.Client.Apply(ctx, service, FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply Service: %w", err)
	}
	if err := s.Client.Apply(ctx, s.statefulSet(store, labels, owner), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply StatefulSet: %w", err)
	}
	return nil
}

// createSecret makes the password once.
func (s *Stores) createSecret(ctx context.Context, store *v1alpha1.RateLimitStore) error {
	name := types.NamespacedName{Namespace: store.Namespace, Name: managedName(store)}
	err := s.Client.Get(ctx, name, &corev1.Secret{})
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	password := rand.Text()
	memory := managedMemory(store)
	config := fmt.Sprintf(`requirepass %s
maxmemory %d
maxmemory-policy noeviction
dir %s
appendonly %s
save ""
`, password, memory.Value(), dataDir, yesNo(store.Spec.Managed.Storage != nil))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels: map[string]string{v1alpha1.LabelUse: v1alpha1.UseStore},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "RateLimitStore", Name: store.Name, UID: store.UID, Controller: new(true),
			}},
		},
		StringData: map[string]string{"password": password, configEntry: config},
	}
	if err := s.Client.Create(ctx, secret); err != nil {
		return fmt.Errorf("create Secret: %w", err)
	}
	return nil
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func managedMemory(store *v1alpha1.RateLimitStore) resource.Quantity {
	if m := store.Spec.Managed.Memory; m != nil {
		return *m
	}
	return resource.MustParse(defaultMemory)
}

func (s *Stores) statefulSet(store *v1alpha1.RateLimitStore, labels map[string]string, owner *metav1ac.OwnerReferenceApplyConfiguration) *appsv1ac.StatefulSetApplyConfiguration {
	spec := corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithSecurityContext(corev1ac.PodSecurityContext().WithRunAsNonRoot(true).WithRunAsUser(storeUser).WithRunAsGroup(storeUser).
			WithFSGroup(storeUser).WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithContainers(s.container(store)).
		WithVolumes(corev1ac.Volume().WithName("config").WithSecret(corev1ac.SecretVolumeSource().WithSecretName(managedName(store)).
			WithItems(corev1ac.KeyToPath().WithKey(configEntry).WithPath(configEntry))))
	set := appsv1ac.StatefulSetSpec().WithReplicas(1).WithServiceName(managedName(store)).
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithAnnotations(map[string]string{v1alpha1.AnnotationInject: v1alpha1.InjectDisabled}).
			WithSpec(spec))
	if storage := store.Spec.Managed.Storage; storage != nil {
		claim := corev1ac.PersistentVolumeClaimSpec().WithAccessModes(corev1.ReadWriteOnce).
			WithResources(corev1ac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: *storage.Size}))
		if storage.StorageClassName != "" {
			claim = claim.WithStorageClassName(storage.StorageClassName)
		}
		set = set.WithVolumeClaimTemplates(&corev1ac.PersistentVolumeClaimApplyConfiguration{
			ObjectMetaApplyConfiguration: metav1ac.ObjectMeta().WithName("data"), Spec: claim,
		})
	} else {
		spec.WithVolumes(corev1ac.Volume().WithName("data").WithEmptyDir(corev1ac.EmptyDirVolumeSource()))
	}
	return appsv1ac.StatefulSet(managedName(store), store.Namespace).WithLabels(labels).WithOwnerReferences(owner).WithSpec(set)
}

func (s *Stores) container(store *v1alpha1.RateLimitStore) *corev1ac.ContainerApplyConfiguration {
	image := store.Spec.Managed.Image
	if image == "" {
		image = s.Image
	}
	probe := corev1ac.Probe().WithTCPSocket(corev1ac.TCPSocketAction().WithPort(intstr.FromInt32(redisPort)))
	return corev1ac.Container().WithName("redis").WithImage(image).WithImagePullPolicy(corev1.PullIfNotPresent).
		WithCommand("redis-server", configDir+"/"+configEntry).
		WithPorts(corev1ac.ContainerPort().WithName("redis").WithContainerPort(redisPort)).
		WithReadinessProbe(probe).
		WithResources(storeResources(store)).
		WithSecurityContext(corev1ac.SecurityContext().WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithVolumeMounts(
			corev1ac.VolumeMount().WithName("config").WithMountPath(configDir).WithReadOnly(true),
			corev1ac.VolumeMount().WithName("data").WithMountPath(dataDir))
}

func storeResources(store *v1alpha1.RateLimitStore) *corev1ac.ResourceRequirementsApplyConfiguration {
	if r := store.Spec.Managed.Resources; r != nil {
		return corev1ac.ResourceRequirements().WithRequests(r.Requests).WithLimits(r.Limits)
	}
	memory := managedMemory(store)
	limit := resource.NewQuantity(memory.Value()*overheadPercent/100, resource.BinarySI)
	return corev1ac.ResourceRequirements().
		WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: memory}).
		WithLimits(corev1.ResourceList{corev1.ResourceMemory: *limit})
}
