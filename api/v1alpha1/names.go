package v1alpha1

// Annotations and labels that users set.
const (
	// AnnotationInject asks for the sidecar ("enabled") or refuses it ("disabled"); also a label on Namespaces.
	AnnotationInject = "sluice.dev/inject"
	// AnnotationInterception chooses redirect, named-port or none.
	AnnotationInterception = "sluice.dev/interception"
	// AnnotationPorts lists the guarded ports, separated by commas.
	AnnotationPorts = "sluice.dev/ports"
	// AnnotationSidecarResources gives the sidecar's resources as a JSON object.
	AnnotationSidecarResources = "sluice.dev/sidecar-resources"
	// AnnotationLogLevel sets the sidecar's log level: debug, info, warn or error.
	AnnotationLogLevel = "sluice.dev/log-level"
	// AnnotationDrainTimeout bounds how long the sidecar finishes requests after SIGTERM.
	AnnotationDrainTimeout = "sluice.dev/drain-timeout"
	// AnnotationProxyProtocol says "true" where trusted proxies speak the PROXY protocol.
	AnnotationProxyProtocol = "sluice.dev/proxy-protocol"
	// AnnotationOnMissingRules says what happens while no rules have arrived: allow or deny.
	AnnotationOnMissingRules = "sluice.dev/on-missing-rules"
	// AnnotationRepair says "rollout" where bare pods may be replaced by restarting their workload.
	AnnotationRepair = "sluice.dev/repair"
	// AnnotationID names the caller that holds an API key; on Secrets.
	AnnotationID = "sluice.dev/id"
	// AnnotationClaims holds a JSON object of strings: the claims of an API key's holder; on Secrets.
	AnnotationClaims = "sluice.dev/claims"
	// LabelUse marks the Secrets that the operator may read: jwks, api-keys or store.
	LabelUse = "sluice.dev/use"
	// AnnotationStatus is written by the injector on pods: what it did, and why not.
	AnnotationStatus = "sluice.dev/status"
)

// Values of the annotations and labels above.
const (
	InjectEnabled  = "enabled"
	InjectDisabled = "disabled"

	InterceptionRedirect  = "redirect"
	InterceptionNamedPort = "named-port"
	InterceptionNone      = "none"

	UseJWKS    = "jwks"
	UseAPIKeys = "api-keys"
	UseStore   = "store"
)

// Condition types of RateLimitPolicy and RateLimitStore.
const (
	// ConditionReady is derived from the others, never set on its own.
	ConditionReady = "Ready"
	// ConditionAccepted says whether the specification is valid and all that it refers to exists.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed says whether every selected pod's sidecar acknowledged the wanted content.
	ConditionProgrammed = "Programmed"
	// ConditionStoreReady says whether the policy's store answers.
	ConditionStoreReady = "StoreReady"
	// ConditionIdentityReady says whether the key sets and Secrets of the policy's identity are there.
	ConditionIdentityReady = "IdentityReady"
)

// Reasons of Accepted.
const (
	ReasonAccepted        = "Accepted"
	ReasonInvalid         = "Invalid"
	ReasonTargetNotFound  = "TargetNotFound"
	ReasonStoreNotFound   = "StoreNotFound"
	ReasonStoreNotAllowed = "StoreNotAllowed"
)

// Reasons of Programmed.
const (
	ReasonProgrammed          = "Programmed"
	ReasonReconciling         = "Reconciling"
	ReasonPartiallyProgrammed = "PartiallyProgrammed"
	ReasonNotInjected         = "NotInjected"
	ReasonBypassed            = "Bypassed"
	ReasonNoSidecars          = "NoSidecars"
)

// Reasons of StoreReady, IdentityReady and a store's Ready.
const (
	ReasonReady        = "Ready"
	ReasonNotReady     = "NotReady"
	ReasonNotNeeded    = "NotNeeded"
	ReasonUnreachable  = "Unreachable"
	ReasonSecretAbsent = "SecretNotFound"
	ReasonKeysAbsent   = "KeysNotFound"
)
