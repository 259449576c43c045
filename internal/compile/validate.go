package compile

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/expression"
)

// Bounds that a file's policy must keep as the schema makes the cluster's keep them.
const (
	maxRules   = 256
	maxTiers   = 16
	maxMatches = 16
	maxLimits  = 32
	maxTargets = 16
	maxText    = 1024
	maxBody    = 8 << 10
	maxKeys    = 8
)

// Validate tells everything that is wrong with a policy whose defaults are filled in. Each error names the field, the
// value and the way out. It is the same for admission and for files.
func Validate(p *v1alpha1.RateLimitPolicy) field.ErrorList {
	env, err := expression.New()
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	v := &validator{env: env, tiers: sets.New[string](), policy: p}
	spec := field.NewPath("spec")
	v.targets(spec)
	v.enums(spec)
	if p.Spec.Identity != nil {
		v.identity(spec.Child("identity"), p.Spec.Identity)
	}
	v.tierList(spec.Child("tiers"))
	v.ruleList(spec.Child("rules"))
	v.response(spec.Child("response"), p.Spec.Response)
	return v.errs
}

type validator struct {
	env    *expression.Env
	policy *v1alpha1.RateLimitPolicy
	tiers  sets.Set[string]
	errs   field.ErrorList
}

func (v *validator) add(err *field.Error) { v.errs = append(v.errs, err) }

func (v *validator) invalid(at *field.Path, value any, format string, args ...any) {
	v.add(field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

// count bounds a list and tells whether it may be walked.
func (v *validator) count(at *field.Path, n, most int) {
	if n > most {
		v.add(field.TooMany(at, n, most))
	}
}

func (v *validator) text(at *field.Path, value string, most int) {
	if len(value) > most {
		v.add(field.TooLong(at, value, most))
	}
}

// oneOf refuses a value that is not in the list; "" is left to defaults.
func oneOf[T ~string](v *validator, at *field.Path, value T, allowed ...T) {
	if value != "" && !slices.Contains(allowed, value) {
		v.add(field.NotSupported(at, value, allowed))
	}
}

// code type-checks a CEL expression.
func (v *validator) code(at *field.Path, kind expression.Kind, source string) {
	if _, err := v.env.Compile(kind, source); err != nil {
		v.invalid(at, source, "%s", err)
	}
}

func (v *validator) targets(spec *field.Path) {
	s := &v.policy.Spec
	if len(s.TargetRefs) > 0 && s.Selector != nil {
		v.add(field.Forbidden(spec.Child("selector"), "at most one of targetRefs and selector may be set"))
	}
	v.count(spec.Child("targetRefs"), len(s.TargetRefs), maxTargets)
	seen := sets.New[string]()
	for i, ref := range s.TargetRefs {
		at := spec.Child("targetRefs").Index(i)
		v.target(at, ref)
		if id := ref.Kind + "/" + ref.Name; seen.Has(id) {
			v.add(field.Duplicate(at, id))
		} else {
			seen.Insert(id)
		}
	}
	v.selector(spec.Child("selector"), s.Selector)
}

var groupOf = map[string]string{
	"Deployment": "apps", "StatefulSet": "apps", "DaemonSet": "apps", "ReplicaSet": "apps",
	"Job": "batch", "CronJob": "batch", "Service": "",
}

func (v *validator) target(at *field.Path, ref v1alpha1.TargetRef) {
	group, known := groupOf[ref.Kind]
	if !known {
		v.add(field.NotSupported(at.Child("kind"), ref.Kind, sets.List(sets.KeySet(groupOf))))
		return
	}
	if ref.Group != nil && *ref.Group != group {
		v.invalid(at.Child("group"), *ref.Group, "%s is of group %q", ref.Kind, group)
	}
	if ref.Name == "" {
		v.add(field.Required(at.Child("name"), "name the "+ref.Kind))
	}
}

func (v *validator) selector(at *field.Path, s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		v.invalid(at, metav1.FormatLabelSelector(s), "%s", err)
	}
}

func (v *validator) enums(spec *field.Path) {
	s := &v.policy.Spec
	oneOf(v, spec.Child("mode"), s.Mode, v1alpha1.ModeCentral, v1alpha1.ModeHybrid, v1alpha1.ModeLocal)
	oneOf(v, spec.Child("onStoreFailure"), s.OnStoreFailure,
		v1alpha1.OnStoreFailureLocal, v1alpha1.OnStoreFailureAllow, v1alpha1.OnStoreFailureDeny)
	oneOf(v, spec.Child("enforcement"), s.Enforcement, v1alpha1.EnforcementEnforce, v1alpha1.EnforcementShadow)
	if s.StoreRef != nil && s.StoreRef.Name == "" {
		v.add(field.Required(spec.Child("storeRef", "name"), "name the RateLimitStore"))
	}
}

func (v *validator) identity(at *field.Path, id *v1alpha1.Identity) {
	oneOf(v, at.Child("onInvalidCredential"), id.OnInvalidCredential,
		v1alpha1.InvalidCredentialAnonymous, v1alpha1.InvalidCredentialReject)
	if id.ClientIP != nil {
		v.clientIP(at.Child("clientIP"), id.ClientIP)
	}
	issuers := sets.New[string]()
	v.count(at.Child("jwt"), len(id.JWT), maxTiers)
	for i := range id.JWT {
		v.jwt(at.Child("jwt").Index(i), &id.JWT[i])
		if issuers.Has(id.JWT[i].Issuer) {
			v.add(field.Duplicate(at.Child("jwt").Index(i).Child("issuer"), id.JWT[i].Issuer))
		}
		issuers.Insert(id.JWT[i].Issuer)
	}
	if id.APIKeys != nil {
		v.apiKeys(at.Child("apiKeys"), id.APIKeys)
	}
	if id.TrustedHeaders != nil {
		v.trustedHeaders(at.Child("trustedHeaders"), id)
	}
}

func (v *validator) clientIP(at *field.Path, c *v1alpha1.ClientIP) {
	for i, cidr := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			v.invalid(at.Child("trustedProxies").Index(i), cidr, "must be a CIDR such as 10.0.42.7/32 or 2001:db8::/64")
		}
	}
	v.between(at.Child("ipv4PrefixLength"), c.IPv4PrefixLength, 32)
	v.between(at.Child("ipv6PrefixLength"), c.IPv6PrefixLength, 128)
}

func (v *validator) between(at *field.Path, value *int32, most int32) {
	if value != nil && (*value < 1 || *value > most) {
		v.invalid(at, *value, "must be 1 to %d", most)
	}
}

func (v *validator) jwt(at *field.Path, j *v1alpha1.JWT) {
	if j.Issuer == "" {
		v.add(field.Required(at.Child("issuer"), "what the tokens' iss claim says"))
	}
	v.text(at.Child("issuer"), j.Issuer, maxText)
	v.credentialSource(at.Child("from"), j.From)
	sources := 0
	for _, set := range []bool{j.JWKS.URI != "", j.JWKS.SecretRef != nil, j.JWKS.ConfigMapRef != nil} {
		if set {
			sources++
		}
	}
	if sources != 1 {
		v.invalid(at.Child("jwks"), "", "give exactly one of uri, secretRef and configMapRef")
	}
	if j.JWKS.URI != "" {
		if u, err := url.Parse(j.JWKS.URI); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			v.invalid(at.Child("jwks", "uri"), j.JWKS.URI, "must be an https address without credentials")
		}
	}
	v.keyRef(at.Child("jwks", "secretRef"), j.JWKS.SecretRef)
	v.keyRef(at.Child("jwks", "configMapRef"), j.JWKS.ConfigMapRef)
}

func (v *validator) keyRef(at *field.Path, r *v1alpha1.KeyRef) {
	if r == nil {
		return
	}
	if r.Name == "" {
		v.add(field.Required(at.Child("name"), "name the object"))
	}
	if r.Key == "" {
		v.add(field.Required(at.Child("key"), "name the entry"))
	}
}

func (v *validator) credentialSource(at *field.Path, s *v1alpha1.CredentialSource) {
	if s == nil {
		return
	}
	v.header(at.Child("header"), s.Header)
	if s.Prefix != nil {
		v.text(at.Child("prefix"), *s.Prefix, maxText)
	}
}

func (v *validator) header(at *field.Path, name string) {
	switch {
	case name == "":
		v.add(field.Required(at, "name the header"))
	case !httpguts.ValidHeaderFieldName(name):
		v.invalid(at, name, "is not the name of a header")
	case hopByHop.Has(http.CanonicalHeaderKey(name)):
		v.invalid(at, name, "belongs to the connection, not to the request: choose another header")
	}
	v.text(at, name, maxText)
}

var hopByHop = sets.New("Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Host", "Content-Length")

func (v *validator) apiKeys(at *field.Path, k *v1alpha1.APIKeys) {
	v.credentialSource(at.Child("from"), k.From)
	if k.SecretSelector == nil {
		v.add(field.Required(at.Child("secretSelector"), "choose Secrets by their labels; {} is all that are labelled sluice.dev/use: api-keys"))
	}
	v.selector(at.Child("secretSelector"), k.SecretSelector)
}

func (v *validator) trustedHeaders(at *field.Path, id *v1alpha1.Identity) {
	v.header(at.Child("id"), id.TrustedHeaders.ID)
	for claim, header := range id.TrustedHeaders.Claims {
		v.header(at.Child("claims").Key(claim), string(header))
	}
	if id.ClientIP == nil || len(id.ClientIP.TrustedProxies) == 0 {
		v.invalid(at, id.TrustedHeaders.ID, "has no meaning without identity.clientIP.trustedProxies: name the gateway's addresses there")
	}
}

func (v *validator) tierList(at *field.Path) {
	tiers := v.policy.Spec.Tiers
	v.count(at, len(tiers), maxTiers)
	open := ""
	for i, t := range tiers {
		v.name(at.Index(i).Child("name"), t.Name, v.tiers)
		if open != "" {
			v.invalid(at.Index(i).Child("name"), t.Name, "can't be reached: tier %q before it has no `when` and matches everyone; move it last", open)
		}
		if t.When == "" {
			open = t.Name
			continue
		}
		v.text(at.Index(i).Child("when"), t.When, maxText)
		v.code(at.Index(i).Child("when"), expression.Condition, t.When)
	}
}

// name checks a name and that it is the first of its kind.
func (v *validator) name(at *field.Path, name string, seen sets.Set[string]) {
	if name == "" {
		v.add(field.Required(at, "give a name"))
		return
	}
	for _, problem := range validation.IsDNS1123Label(name) {
		v.invalid(at, name, "%s", problem)
	}
	if seen.Has(name) {
		v.add(field.Duplicate(at, name))
	}
	seen.Insert(name)
}

func (v *validator) response(at *field.Path, r *v1alpha1.Response) {
	if r == nil {
		return
	}
	if r.Headers != nil {
		seen := sets.New[v1alpha1.HeaderDialect]()
		for i, h := range *r.Headers {
			oneOf(v, at.Child("headers").Index(i), h, v1alpha1.HeadersRateLimit, v1alpha1.HeadersLegacy, v1alpha1.HeadersXRateLimit)
			if seen.Has(h) {
				v.add(field.Duplicate(at.Child("headers").Index(i), h))
			}
			seen.Insert(h)
		}
	}
	oneOf(v, at.Child("resetFormat"), r.ResetFormat, v1alpha1.ResetDeltaSeconds, v1alpha1.ResetUnixSeconds)
	if r.RetryAfterJitter != "" {
		if _, err := ParseDuration(r.RetryAfterJitter); err != nil {
			v.invalid(at.Child("retryAfterJitter"), r.RetryAfterJitter, "%s", err)
		}
	}
	if r.Body != nil {
		v.text(at.Child("body", "expression"), r.Body.Expression, maxBody)
		v.code(at.Child("body", "expression"), expression.Body, r.Body.Expression)
		if !httpguts.ValidHeaderFieldValue(r.Body.ContentType) || !strings.Contains(r.Body.ContentType, "/") {
			v.invalid(at.Child("body", "contentType"), r.Body.ContentType, "must be a media type such as application/json")
		}
	}
}

func (v *validator) matches(at *field.Path, list []v1alpha1.Match) {
	v.count(at, len(list), maxMatches)
	for i := range list {
		m, at := &list[i], at.Index(i)
		if m.Path != nil {
			v.path(at.Child("path"), m.Path)
		}
		oneOf(v, at.Child("method"), m.Method, "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
		for j, h := range m.Headers {
			v.header(at.Child("headers").Index(j).Child("name"), h.Name)
			v.value(at.Child("headers").Index(j), h.Type, h.Value)
		}
		for j, q := range m.QueryParams {
			if q.Name == "" {
				v.add(field.Required(at.Child("queryParams").Index(j).Child("name"), "name the parameter"))
			}
			v.value(at.Child("queryParams").Index(j), q.Type, q.Value)
		}
	}
}

func (v *validator) path(at *field.Path, p *v1alpha1.PathMatch) {
	oneOf(v, at.Child("type"), p.Type, v1alpha1.PathMatchExact, v1alpha1.PathMatchPathPrefix, v1alpha1.PathMatchRegularExpression)
	v.text(at.Child("value"), p.Value, maxText)
	if p.Type == v1alpha1.PathMatchRegularExpression {
		v.pattern(at.Child("value"), p.Value)
		return
	}
	if !strings.HasPrefix(p.Value, "/") {
		v.invalid(at.Child("value"), p.Value, "must start with /")
	}
}

func (v *validator) value(at *field.Path, kind v1alpha1.ValueMatchType, value string) {
	oneOf(v, at.Child("type"), kind, v1alpha1.ValueMatchExact, v1alpha1.ValueMatchRegularExpression)
	v.text(at.Child("value"), value, maxText)
	if kind == v1alpha1.ValueMatchRegularExpression {
		v.pattern(at.Child("value"), value)
	}
}

func (v *validator) pattern(at *field.Path, value string) {
	if _, err := regexp.Compile(value); err != nil {
		v.invalid(at, value, "is not a regular expression (RE2): %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
}

// constantCost is a cost that needs no request to be known.
func constantCost(source string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(source), 10, 64)
	return n, err == nil
}
