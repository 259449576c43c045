package admission

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	minTimeout = time.Millisecond
	maxTimeout = 10 * time.Second
	// slowTimeout is the timeout from which requests visibly wait for a store that is away.
	slowTimeout = time.Second
)

// minMemory is what a managed store needs before it holds any counter.
var minMemory = resource.MustParse("16Mi")

// ValidateStore checks what the schema of RateLimitStore can't say.
func ValidateStore(store *v1alpha1.RateLimitStore) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateTimeout(store.Spec.Timeout, spec.Child("timeout"))
	errs = append(errs, validateAllowed(store.Spec.AllowedNamespaces, spec.Child("allowedNamespaces"))...)
	if external := store.Spec.External; external != nil {
		errs = append(errs, validateExternal(external, spec)...)
	}
	if managed := store.Spec.Managed; managed != nil {
		errs = append(errs, validateManaged(managed, spec.Child("managed"))...)
	}
	return errs
}

// StoreWarnings says what is legal and probably wrong.
func StoreWarnings(store *v1alpha1.RateLimitStore) []string {
	var warnings []string
	if timeout, err := time.ParseDuration(string(store.Spec.Timeout)); err == nil && timeout >= slowTimeout {
		warnings = append(warnings, fmt.Sprintf("spec.timeout: each request waits up to %s while the store is away", timeout))
	}
	external := store.Spec.External
	if external == nil {
		return warnings
	}
	if external.TLS == nil {
		warnings = append(warnings, "spec.external.tls: absent, so credentials and counters travel unencrypted")
	} else if external.TLS.InsecureSkipVerify != nil && *external.TLS.InsecureSkipVerify {
		warnings = append(warnings, "spec.external.tls.insecureSkipVerify: anyone in between can pose as the store")
	}
	if external.AuthSecretRef == nil {
		warnings = append(warnings, "spec.external.authSecretRef: absent, so the store has to accept everyone")
	}
	return warnings
}

func validateTimeout(timeout v1alpha1.Duration, path *field.Path) field.ErrorList {
	if timeout == "" {
		return nil
	}
	duration, err := time.ParseDuration(string(timeout))
	if err != nil || duration < minTimeout || duration > maxTimeout {
		return field.ErrorList{field.Invalid(path, timeout, "must be from 1ms to 10s")}
	}
	return nil
}

func validateAllowed(allowed *v1alpha1.AllowedNamespaces, path *field.Path) field.ErrorList {
	if allowed == nil {
		return nil
	}
	if allowed.Selector != nil {
		if errs := validation.ValidateLabelSelector(allowed.Selector, validation.LabelSelectorValidationOptions{}, path.Child("selector")); len(errs) > 0 {
			return errs
		}
		return field.ErrorList{field.Forbidden(path, sharingProblem)}
	}
	if allowed.From != v1alpha1.NamespacesSame && allowed.From != v1alpha1.NamespacesAll {
		return field.ErrorList{field.Invalid(path, allowed.From, v1alpha1.ErrAllowedNamespaces.Error())}
	}
	if allowed.From == v1alpha1.NamespacesAll {
		return field.ErrorList{field.Forbidden(path, sharingProblem)}
	}
	return nil
}

// sharingProblem keeps one team's counters from another: with one Redis user for all, each could read and erase the others'.
const sharingProblem = "sharing a store between namespaces needs a Redis user for each, which is not supported yet; " +
	"set it to Same, and make a RateLimitStore in each namespace"

func validateExternal(external *v1alpha1.ExternalStore, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("external")
	for i, address := range external.Addresses {
		if problem := addressProblem(address); problem != "" {
			errs = append(errs, field.Invalid(path.Child("addresses").Index(i), address, problem))
		}
	}
	if external.AdminSecretRef != nil {
		errs = append(errs, field.Forbidden(path.Child("adminSecretRef"), "one user for each namespace is not supported yet; remove it"))
	}
	return errs
}

// addressProblem says what is wrong with host:port; "" is nothing. Loopback is each pod's own, and link-local
// is where clouds keep their credentials, so neither can be a store of a cluster.
func addressProblem(address string) string {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return "must be host:port"
	}
	if port, err := strconv.ParseUint(portText, 10, 16); err != nil || port == 0 {
		return "the port must be from 1 to 65535"
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return "must not be a loopback address: each sidecar would look for the store in its own pod"
	}
	return ipProblem(name)
}

func ipProblem(host string) string {
	parsed, err := netip.ParseAddr(host)
	if err != nil {
		if looksNumeric(host) {
			return "must be a host name, or an address in its usual form"
		}
		return ""
	}
	switch ip := parsed.Unmap(); {
	case ip.IsLoopback():
		return "must not be a loopback address: each sidecar would look for the store in its own pod"
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast():
		return "must not be a link-local address"
	case ip.IsUnspecified(), ip.IsMulticast():
		return "must be the address of one server"
	}
	return ""
}

// looksNumeric tells whether a resolver may take a name such as 127.1 or 127.0.0.0x1 for an address:
// a number at the end makes a host an address (WHATWG URL, "ends in a number").
func looksNumeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	_, err := strconv.ParseUint(last, 0, 64)
	return last == "" || err == nil
}

func validateManaged(managed *v1alpha1.ManagedStore, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if managed.Memory != nil && managed.Memory.Cmp(minMemory) < 0 {
		errs = append(errs, field.Invalid(path.Child("memory"), managed.Memory.String(), "must be at least "+minMemory.String()))
	}
	if managed.Storage != nil && managed.Storage.Size != nil && managed.Storage.Size.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("storage", "size"), managed.Storage.Size.String(), "must be more than 0"))
	}
	if resources := managed.Resources; resources != nil && managed.Memory != nil {
		if limit := resources.Limits.Memory(); !limit.IsZero() && limit.Cmp(*managed.Memory) <= 0 {
			errs = append(errs, field.Invalid(path.Child("resources", "limits", "memory"), limit.String(),
				"must be more than memory ("+managed.Memory.String()+"), or the store is killed before it is full"))
		}
	}
	return errs
}
