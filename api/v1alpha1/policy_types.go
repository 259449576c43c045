package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RateLimitPolicy limits how often callers may use the pods that it selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rlp,categories=sluice
// +kubebuilder:metadata:labels="gateway.networking.k8s.io/policy=Direct"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Sidecars",type=string,JSONPath=`.status.sidecars.summary`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RateLimitPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec says who is limited, and how.
	// +required
	Spec RateLimitPolicySpec `json:"spec,omitzero"`

	// status says what is really enforced; the operator writes it.
	// +optional
	Status RateLimitPolicyStatus `json:"status,omitempty,omitzero"`
}

// RateLimitPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type RateLimitPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RateLimitPolicy `json:"items"`
}

// Mode says where decisions are taken.
//
// +kubebuilder:validation:Enum=Central;Hybrid;Local
type Mode string

// The modes.
const (
	ModeCentral Mode = "Central"
	ModeHybrid  Mode = "Hybrid"
	ModeLocal   Mode = "Local"
)

// FailurePolicy says what happens to requests while the store can't be asked.
//
// +kubebuilder:validation:Enum=Local;Allow;Deny
type FailurePolicy string

// The failure policies.
const (
	OnStoreFailureLocal FailurePolicy = "Local"
	OnStoreFailureAllow FailurePolicy = "Allow"
	OnStoreFailureDeny  FailurePolicy = "Deny"
)

// Enforcement says whether a refusal reaches the caller.
//
// +kubebuilder:validation:Enum=Enforce;Shadow
type Enforcement string

// The enforcements.
const (
	EnforcementEnforce Enforcement = "Enforce"
	EnforcementShadow  Enforcement = "Shadow"
)

// RateLimitPolicySpec is what a user wants.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.targetRefs) && has(self.selector))",message="at most one of targetRefs and selector may be set"
type RateLimitPolicySpec struct {
	// targetRefs names the workloads or Services whose pods are guarded.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	TargetRefs []TargetRef `json:"targetRefs,omitempty"`

	// selector chooses the guarded pods by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// default makes the policy apply only to pods that no other policy selects.
	// +optional
	Default *bool `json:"default,omitempty"`

	// storeRef names the RateLimitStore that holds the counters.
	// Omitted, it is the store named "default".
	// +optional
	StoreRef *StoreRef `json:"storeRef,omitempty"`

	// mode says where decisions are taken.
	// +optional
	// +default="Central"
	Mode Mode `json:"mode,omitempty"`

	// onStoreFailure says what happens to requests while the store can't be asked.
	// +optional
	// +default="Local"
	OnStoreFailure FailurePolicy `json:"onStoreFailure,omitempty"`

	// enforcement Shadow counts and reports, and never rejects or delays.
	// +optional
	// +default="Enforce"
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// identity says how to tell who is calling.
	// +optional
	Identity *Identity `json:"identity,omitempty"`

	// tiers are the classes of callers; the first that matches is the caller's.
	// Omitted, there is one tier, "anonymous".
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Tiers []Tier `json:"tiers,omitempty"`

	// rules are the limits; a request must pass every rule that matches it.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Rules []Rule `json:"rules,omitempty"`

	// response shapes the answers.
	// +optional
	Response *Response `json:"response,omitempty"`
}

// TargetRef names a workload or a Service of the policy's namespace.
//
// +kubebuilder:validation:XValidation:rule=`self.kind in ['Deployment','StatefulSet','DaemonSet','ReplicaSet'] ? self.group == 'apps' : self.kind in ['Job','CronJob'] ? self.group == 'batch' : self.group == ""`,message="group must be \"apps\" for Deployment, StatefulSet, DaemonSet and ReplicaSet, \"batch\" for Job and CronJob, and \"\" for Service"
type TargetRef struct {
	// group is the API group of the kind: apps, batch or "".
	// +required
	// +kubebuilder:validation:MinLength=0
	// +kubebuilder:validation:MaxLength=253
	Group *string `json:"group,omitempty"`

	// kind is the workload's kind.
	// +required
	// +kubebuilder:validation:Enum=Deployment;StatefulSet;DaemonSet;ReplicaSet;Job;CronJob;Service
	Kind string `json:"kind,omitempty"`

	// name is the workload's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// StoreRef names a RateLimitStore in the policy's namespace or in the operator's.
type StoreRef struct {
	// name is the store's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// InvalidCredential says what a credential that was presented but is not valid leads to.
//
// +kubebuilder:validation:Enum=Anonymous;Reject
type InvalidCredential string

// What to do with an invalid credential.
const (
	InvalidCredentialAnonymous InvalidCredential = "Anonymous"
	InvalidCredentialReject    InvalidCredential = "Reject"
)

// Identity says how to tell who is calling. Sources are tried in the order jwt, apiKeys, trustedHeaders.
//
// +kubebuilder:validation:MinProperties=1
type Identity struct {
	// clientIP says how to find the caller's address.
	// +optional
	ClientIP *ClientIP `json:"clientIP,omitempty"`

	// jwt lists the issuers of bearer tokens.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	JWT []JWT `json:"jwt,omitempty"`

	// apiKeys accepts keys that stand in Secrets.
	// +optional
	APIKeys *APIKeys `json:"apiKeys,omitempty"`

	// trustedHeaders accepts what an authenticating gateway says.
	// +optional
	TrustedHeaders *TrustedHeaders `json:"trustedHeaders,omitempty"`

	// onInvalidCredential says what a credential that was presented but is not valid leads to.
	// +optional
	// +default="Anonymous"
	OnInvalidCredential InvalidCredential `json:"onInvalidCredential,omitempty"`
}

// ClientIP says how to find the caller's address.
//
// +kubebuilder:validation:MinProperties=1
type ClientIP struct {
	// trustedProxies are the CIDRs through which X-Forwarded-For and Forwarded are believed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	TrustedProxies []string `json:"trustedProxies,omitempty"`

	// ipv4PrefixLength is how many bits of an IPv4 address make one caller.
	// +optional
	// +default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	IPv4PrefixLength *int32 `json:"ipv4PrefixLength,omitempty"`

	// ipv6PrefixLength is how many bits of an IPv6 address make one caller.
	// +optional
	// +default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	IPv6PrefixLength *int32 `json:"ipv6PrefixLength,omitempty"`
}

// JWT accepts signed tokens of one issuer.
type JWT struct {
	// issuer is what the token's iss claim must say.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Issuer string `json:"issuer,omitempty"`

	// audiences are the accepted values of the aud claim; one is enough. Omitted, aud is not looked at.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Audiences []string `json:"audiences,omitempty"`

	// jwks says where the issuer's keys are.
	// +required
	JWKS JWKS `json:"jwks,omitzero"`

	// from says which header carries the token.
	// +optional
	// +default={"header": "Authorization", "prefix": "Bearer "}
	From *CredentialSource `json:"from,omitempty"`

	// idClaim is the claim that identifies the caller.
	// +optional
	// +default="sub"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	IDClaim string `json:"idClaim,omitempty"`
}

// JWKS says where a JSON Web Key Set (RFC 7517) is.
//
// +kubebuilder:validation:ExactlyOneOf=uri;secretRef;configMapRef
type JWKS struct {
	// uri is an https address; the operator fetches it, sidecars never do.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://')",message="must be an https address"
	URI string `json:"uri,omitempty"`

	// secretRef names a Secret labelled sluice.dev/use: jwks.
	// +optional
	SecretRef *KeyRef `json:"secretRef,omitempty"`

	// configMapRef names a ConfigMap.
	// +optional
	ConfigMapRef *KeyRef `json:"configMapRef,omitempty"`
}

// KeyRef names one entry of a Secret or ConfigMap of the policy's namespace.
type KeyRef struct {
	// name is the object's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the entry.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// CredentialSource says which header carries a credential.
type CredentialSource struct {
	// header is the header's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[!#$%&'*+\-.^_|~0-9A-Za-z]+$`
	Header string `json:"header,omitempty"`

	// prefix is what stands before the credential.
	// +optional
	// +kubebuilder:validation:MinLength=0
	// +kubebuilder:validation:MaxLength=1024
	Prefix *string `json:"prefix,omitempty"`
}

// APIKeys accepts keys that stand in Secrets.
type APIKeys struct {
	// from says which header carries the key.
	// +optional
	// +default={"header": "X-API-Key"}
	From *CredentialSource `json:"from,omitempty"`

	// secretSelector chooses Secrets that also carry the label sluice.dev/use: api-keys. Each data entry is one key.
	// +required
	SecretSelector *metav1.LabelSelector `json:"secretSelector,omitempty"`
}

// TrustedHeaders accepts what an authenticating gateway says; from other peers the headers are removed.
type TrustedHeaders struct {
	// id is the header that identifies the caller.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[!#$%&'*+\-.^_|~0-9A-Za-z]+$`
	ID string `json:"id,omitempty"`

	// claims maps a claim's name to the header that carries it.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) >= 1 && size(k) <= 253 && size(self[k]) >= 1)",message="claims and headers need names of 1 to 253 characters"
	Claims map[string]HeaderName `json:"claims,omitempty"`
}

// HeaderName is the name of an HTTP field.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:Pattern=`^[!#$%&'*+\-.^_|~0-9A-Za-z]+$`
type HeaderName string

// Tier is a class of callers.
type Tier struct {
	// name identifies the tier in limits, metrics and answers.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// when is a CEL expression over identity, request and source; omitted, the tier matches everyone.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	When string `json:"when,omitempty"`
}

// Algorithm is a way to limit.
//
// +kubebuilder:validation:Enum=TokenBucket;LeakyBucket;FixedWindow;SlidingWindowLog;SlidingWindowCounter
type Algorithm string

// The algorithms.
const (
	AlgorithmTokenBucket          Algorithm = "TokenBucket"
	AlgorithmLeakyBucket          Algorithm = "LeakyBucket"
	AlgorithmFixedWindow          Algorithm = "FixedWindow"
	AlgorithmSlidingWindowLog     Algorithm = "SlidingWindowLog"
	AlgorithmSlidingWindowCounter Algorithm = "SlidingWindowCounter"
)

// MissingKey says what happens when a key expression yields nothing.
//
// +kubebuilder:validation:Enum=ClientIP;Skip;Reject
type MissingKey string

// What to do when a key expression yields nothing.
const (
	MissingKeyClientIP MissingKey = "ClientIP"
	MissingKeySkip     MissingKey = "Skip"
	MissingKeyReject   MissingKey = "Reject"
)

// Expression is a CEL expression.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=1024
type Expression string

// Rule limits the requests that it matches.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.shared) && self.shared && (has(self.key) || has(self.missingKey)))",message="shared excludes key and missingKey: remove shared, or remove key and missingKey"
// +kubebuilder:validation:XValidation:rule="(self.algorithm == 'LeakyBucket') == has(self.queue)",message="queue is required with algorithm LeakyBucket and has no meaning with another"
// +kubebuilder:validation:XValidation:rule=`self.algorithm != 'LeakyBucket' || self.limits.all(a, self.limits.exists_one(b, (has(a.tier) ? a.tier : "") == (has(b.tier) ? b.tier : "")))`,message="LeakyBucket takes one limit for each tier"
// +kubebuilder:validation:XValidation:rule="!has(self.countRejected) || !self.countRejected || self.algorithm in ['FixedWindow','SlidingWindowLog','SlidingWindowCounter']",message="countRejected has a meaning only with FixedWindow, SlidingWindowLog and SlidingWindowCounter"
// +kubebuilder:validation:XValidation:rule="self.algorithm == 'TokenBucket' || self.limits.all(l, !has(l.burst))",message="burst has a meaning only with TokenBucket"
// +kubebuilder:validation:XValidation:rule="self.algorithm != 'SlidingWindowLog' || self.limits.all(l, l.requests <= 1000000)",message="SlidingWindowLog takes at most 1000000 requests; use SlidingWindowCounter for more"
type Rule struct {
	// name identifies the rule in metrics and answers.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// match lists alternatives; one that fits is enough. Omitted, every request matches.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Match []Match `json:"match,omitempty"`

	// when is a CEL condition over request, source and identity.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	When string `json:"when,omitempty"`

	// algorithm is the way to limit.
	// +optional
	// +default="SlidingWindowCounter"
	Algorithm Algorithm `json:"algorithm,omitempty"`

	// key lists CEL expressions that yield strings; together they name the counter. Omitted, it is identity.key.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Key []Expression `json:"key,omitempty"`

	// shared makes one counter for the whole tier, instead of one for each key.
	// +optional
	Shared *bool `json:"shared,omitempty"`

	// missingKey says what happens when a key expression yields nothing; by default the caller's address takes its place.
	// +optional
	MissingKey MissingKey `json:"missingKey,omitempty"`

	// cost is a CEL expression that yields how many units a request takes: 0 to 2147483647.
	// +optional
	// +default="1"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Cost string `json:"cost,omitempty"`

	// limits are the limits of the tiers; a tier may have several windows, and a request must pass all.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Limits []Limit `json:"limits,omitempty"`

	// countRejected counts refused requests too, in Central mode with FixedWindow, SlidingWindowLog and SlidingWindowCounter.
	// +optional
	CountRejected *bool `json:"countRejected,omitempty"`

	// queue is how callers wait in a LeakyBucket.
	// +optional
	Queue *Queue `json:"queue,omitempty"`

	// enforcement holds for this rule alone; omitted, the policy's does.
	// +optional
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// response holds for this rule alone; omitted, the policy's does.
	// +optional
	Response *Response `json:"response,omitempty"`
}

// PathMatchType says how a path is compared.
//
// +kubebuilder:validation:Enum=Exact;PathPrefix;RegularExpression
type PathMatchType string

// How a path is compared.
const (
	PathMatchExact             PathMatchType = "Exact"
	PathMatchPathPrefix        PathMatchType = "PathPrefix"
	PathMatchRegularExpression PathMatchType = "RegularExpression"
)

// ValueMatchType says how a header or query parameter is compared.
//
// +kubebuilder:validation:Enum=Exact;RegularExpression
type ValueMatchType string

// How a value is compared.
const (
	ValueMatchExact             ValueMatchType = "Exact"
	ValueMatchRegularExpression ValueMatchType = "RegularExpression"
)

// Match has the shape of Gateway API's HTTPRouteMatch: all that is given must fit.
//
// +kubebuilder:validation:MinProperties=1
type Match struct {
	// path compares the request's path.
	// +optional
	Path *PathMatch `json:"path,omitempty"`

	// method compares the request's method.
	// +optional
	// +kubebuilder:validation:Enum=GET;HEAD;POST;PUT;DELETE;CONNECT;OPTIONS;TRACE;PATCH
	Method string `json:"method,omitempty"`

	// headers compares headers; all must fit.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Headers []HeaderMatch `json:"headers,omitempty"`

	// queryParams compares query parameters; all must fit.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	QueryParams []QueryParamMatch `json:"queryParams,omitempty"`
}

// PathMatch compares a path.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="self.type == 'RegularExpression' || self.value.startsWith('/')",message="value must start with / unless type is RegularExpression"
type PathMatch struct {
	// type says how the path is compared.
	// +optional
	// +default="PathPrefix"
	Type PathMatchType `json:"type,omitempty"`

	// value is compared with the path.
	// +optional
	// +default="/"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`
}

// HeaderMatch compares one header.
type HeaderMatch struct {
	// type says how the value is compared.
	// +optional
	// +default="Exact"
	Type ValueMatchType `json:"type,omitempty"`

	// name is the header's name, in any case of letters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[!#$%&'*+\-.^_|~0-9A-Za-z]+$`
	Name string `json:"name,omitempty"`

	// value is compared with the header's value.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`
}

// QueryParamMatch compares one query parameter.
type QueryParamMatch struct {
	// type says how the value is compared.
	// +optional
	// +default="Exact"
	Type ValueMatchType `json:"type,omitempty"`

	// name is the parameter's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// value is compared with the parameter's value.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`
}

// Duration is a Gateway API duration (GEP-2257), such as 1h30m or 500ms.
//
// +kubebuilder:validation:MinLength=2
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
type Duration string

// Limit is how many requests a tier may make in a window.
type Limit struct {
	// tier names the tier; a limit without tier serves the tiers that have none of their own.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Tier string `json:"tier,omitempty"`

	// requests is how many units a window admits.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Requests *int64 `json:"requests,omitempty"`

	// window is 1ms to 744h.
	// +required
	Window Duration `json:"window,omitempty"`

	// burst is a TokenBucket's capacity; by default it is requests.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Burst *int64 `json:"burst,omitempty"`
}

// Queue is how callers wait in a LeakyBucket.
type Queue struct {
	// maxLength is how many may wait, over all sidecars.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxLength int64 `json:"maxLength,omitempty"`

	// maxWait is how long one may wait.
	// +required
	MaxWait Duration `json:"maxWait,omitempty"`
}

// HeaderDialect is a family of answer headers.
//
// +kubebuilder:validation:Enum=RateLimit;RateLimit-Legacy;X-RateLimit
type HeaderDialect string

// The dialects.
const (
	HeadersRateLimit  HeaderDialect = "RateLimit"
	HeadersLegacy     HeaderDialect = "RateLimit-Legacy"
	HeadersXRateLimit HeaderDialect = "X-RateLimit"
)

// ResetFormat says how the legacy and X- reset fields give time.
//
// +kubebuilder:validation:Enum=DeltaSeconds;UnixSeconds
type ResetFormat string

// The reset formats.
const (
	ResetDeltaSeconds ResetFormat = "DeltaSeconds"
	ResetUnixSeconds  ResetFormat = "UnixSeconds"
)

// Response shapes the answers.
//
// +kubebuilder:validation:MinProperties=1
type Response struct {
	// headers are the families of headers to send; an empty list hides all. Omitted, it is RateLimit and RateLimit-Legacy.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=0
	// +kubebuilder:validation:MaxItems=3
	Headers *[]HeaderDialect `json:"headers,omitempty"`

	// resetFormat is the format of the legacy and X- reset fields. Omitted, it is DeltaSeconds.
	// +optional
	ResetFormat ResetFormat `json:"resetFormat,omitempty"`

	// retryAfterJitter adds up to this much to Retry-After, so that callers do not all return at once.
	// +optional
	RetryAfterJitter Duration `json:"retryAfterJitter,omitempty"`

	// body replaces the problem+json body of a 429.
	// +optional
	Body *Body `json:"body,omitempty"`
}

// Body is the body of a 429.
type Body struct {
	// contentType is the body's media type.
	// +optional
	// +default="application/json"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ContentType string `json:"contentType,omitempty"`

	// expression is a CEL expression over request, source, identity and decision that yields the body: a string, or a map that becomes JSON.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression,omitempty"`
}

// RateLimitPolicyStatus is what is really enforced.
//
// +kubebuilder:validation:MinProperties=1
type RateLimitPolicyStatus struct {
	// conditions are Ready, Accepted, Programmed, StoreReady and IdentityReady.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// sidecars counts the selected pods by what their sidecars acknowledged.
	// +optional
	Sidecars *SidecarCounts `json:"sidecars,omitempty"`
}

// SidecarCounts counts the pods that a policy selects.
//
// +kubebuilder:validation:MinProperties=1
type SidecarCounts struct {
	// selected is the live pods whose sidecar started, and the running pods that asked for one and have none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Selected *int32 `json:"selected,omitempty"`

	// programmed is the selected pods whose sidecar acknowledged the wanted content.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Programmed *int32 `json:"programmed,omitempty"`

	// pending is the selected pods whose sidecar has not acknowledged it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending *int32 `json:"pending,omitempty"`

	// missing is the running pods that asked for a sidecar and have none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Missing *int32 `json:"missing,omitempty"`

	// opaque is the pods through which connections passed that are not HTTP and so were not limited.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Opaque *int32 `json:"opaque,omitempty"`

	// summary is programmed/selected.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Summary string `json:"summary,omitempty"`
}
