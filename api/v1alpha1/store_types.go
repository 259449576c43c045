package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RateLimitStore is a Redis or Valkey that holds the counters of policies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rls,categories=sluice
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Topology",type=string,JSONPath=`.status.topology`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RateLimitStore struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec says which store it is.
	// +required
	Spec RateLimitStoreSpec `json:"spec,omitzero"`

	// status says whether the store answers; the operator writes it.
	// +optional
	Status RateLimitStoreStatus `json:"status,omitempty,omitzero"`
}

// RateLimitStoreList is a list of stores.
//
// +kubebuilder:object:root=true
type RateLimitStoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RateLimitStore `json:"items"`
}

// RateLimitStoreSpec is what a user wants: a store that the operator runs, or one that runs already.
//
// +kubebuilder:validation:ExactlyOneOf=managed;external
type RateLimitStoreSpec struct {
	// managed is a store that the operator runs.
	// +optional
	Managed *ManagedStore `json:"managed,omitempty"`

	// external is a store that runs already.
	// +optional
	External *ExternalStore `json:"external,omitempty"`

	// allowedNamespaces says whose policies may use the store, besides those of its own namespace.
	// Omitted, it is Same.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// timeout bounds each call to the store: 1ms to 10s.
	// +optional
	// +default="50ms"
	Timeout Duration `json:"timeout,omitempty"`
}

// ManagedStore is a store that the operator runs as a StatefulSet of one. Empty, it has the defaults.
//
// +kubebuilder:validation:MinProperties=0
type ManagedStore struct {
	// image is the container image of Redis 6.2 or newer, or of Valkey. Omitted, it is the operator's --store-image.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`

	// memory is the most that counters may take.
	// +optional
	// +default="256Mi"
	Memory *resource.Quantity `json:"memory,omitempty"`

	// storage makes counters outlive the pod.
	// +optional
	Storage *Storage `json:"storage,omitempty"`

	// resources are the container's; omitted, they follow from memory.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Storage is a volume for a managed store.
type Storage struct {
	// size is the volume's size.
	// +required
	Size *resource.Quantity `json:"size,omitempty"`

	// storageClassName is the volume's class; omitted, it is the cluster's default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`
}

// Topology is how the servers of a store hang together.
//
// +kubebuilder:validation:Enum=Standalone;Sentinel;Cluster
type Topology string

// The topologies.
const (
	TopologyStandalone Topology = "Standalone"
	TopologySentinel   Topology = "Sentinel"
	TopologyCluster    Topology = "Cluster"
)

// ExternalStore is a store that runs already.
//
// +kubebuilder:validation:XValidation:rule="(self.topology == 'Sentinel') == has(self.masterName)",message="masterName is required with topology Sentinel and has no meaning with another"
// +kubebuilder:validation:XValidation:rule="self.topology != 'Standalone' || size(self.addresses) == 1",message="topology Standalone takes one address"
type ExternalStore struct {
	// topology is how the servers hang together.
	// +optional
	// +default="Standalone"
	Topology Topology `json:"topology,omitempty"`

	// addresses are host:port of the server, the sentinels, or some servers of the cluster.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=259
	// +kubebuilder:validation:items:Pattern=`^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\.?):[0-9]{1,5}$`
	Addresses []string `json:"addresses,omitempty"`

	// masterName is the name under which the sentinels know the master.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	MasterName string `json:"masterName,omitempty"`

	// authSecretRef names a Secret labelled sluice.dev/use: store with the entries username and password.
	// +optional
	AuthSecretRef *SecretName `json:"authSecretRef,omitempty"`

	// adminSecretRef names such a Secret whose user may manage ACLs; the operator then makes one user for each namespace.
	// +optional
	AdminSecretRef *SecretName `json:"adminSecretRef,omitempty"`

	// tls encrypts the connections; omitted, they are not.
	// +optional
	TLS *StoreTLS `json:"tls,omitempty"`
}

// SecretName names a Secret of the store's namespace.
type SecretName struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// StoreTLS encrypts connections to a store. Empty, the system's roots are trusted.
//
// +kubebuilder:validation:MinProperties=0
type StoreTLS struct {
	// caSecretRef names a Secret labelled sluice.dev/use: store with the entry ca.crt. Omitted, the system's roots are used.
	// +optional
	CASecretRef *SecretName `json:"caSecretRef,omitempty"`

	// clientSecretRef names such a Secret with the entries tls.crt and tls.key, for mutual TLS.
	// +optional
	ClientSecretRef *SecretName `json:"clientSecretRef,omitempty"`

	// insecureSkipVerify accepts any certificate.
	// +optional
	InsecureSkipVerify *bool `json:"insecureSkipVerify,omitempty"`
}

// NamespacesFrom is a named set of namespaces.
//
// +kubebuilder:validation:Enum=Same;All
type NamespacesFrom string

// The named sets of namespaces.
const (
	NamespacesSame NamespacesFrom = "Same"
	NamespacesAll  NamespacesFrom = "All"
)

// AllowedNamespaces is Same, All, or {selector: …}.
//
// The contract writes it as a string or as an object, which a structural schema can only
// say with x-kubernetes-preserve-unknown-fields. The API server refuses CEL rules on such a field;
// MarshalJSON and UnmarshalJSON hold the form, so the webhook refuses what has none of the three.
//
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:Schemaless
// +kubebuilder:pruning:PreserveUnknownFields
type AllowedNamespaces struct {
	// from is the named set; empty where a selector is given.
	From NamespacesFrom `json:"-"`
	// selector chooses namespaces by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// RateLimitStoreStatus is what the operator saw of the store.
//
// +kubebuilder:validation:MinProperties=1
type RateLimitStoreStatus struct {
	// conditions are Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// usedMemoryBytes is what the store's data takes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UsedMemoryBytes *int64 `json:"usedMemoryBytes,omitempty"`

	// maxMemoryBytes is what it may take; 0 is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxMemoryBytes *int64 `json:"maxMemoryBytes,omitempty"`

	// version is the server's version.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`

	// topology is how the servers hang together.
	// +optional
	Topology Topology `json:"topology,omitempty"`

	// summary is a short form for people, such as "12Mi/256Mi".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Summary string `json:"summary,omitempty"`
}
