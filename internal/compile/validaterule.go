package compile

import (
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/expression"
)

const (
	maxUnits       = 1<<31 - 1
	maxLogRequests = 1_000_000
	minWindow      = time.Millisecond
	maxWindow      = 744 * time.Hour
	maxQueue       = 1_000_000
)

func (v *validator) ruleList(at *field.Path) {
	rules := v.policy.Spec.Rules
	if len(rules) == 0 {
		v.add(field.Required(at, "a policy needs at least one rule"))
	}
	v.count(at, len(rules), maxRules)
	names := sets.New[string]()
	for i := range rules {
		v.name(at.Index(i).Child("name"), rules[i].Name, names)
		v.rule(at.Index(i), &rules[i])
	}
}

func (v *validator) rule(at *field.Path, r *v1alpha1.Rule) {
	oneOf(v, at.Child("algorithm"), r.Algorithm, v1alpha1.AlgorithmTokenBucket, v1alpha1.AlgorithmLeakyBucket,
		v1alpha1.AlgorithmFixedWindow, v1alpha1.AlgorithmSlidingWindowLog, v1alpha1.AlgorithmSlidingWindowCounter)
	oneOf(v, at.Child("enforcement"), r.Enforcement, v1alpha1.EnforcementEnforce, v1alpha1.EnforcementShadow)
	v.matches(at.Child("match"), r.Match)
	if r.When != "" {
		v.text(at.Child("when"), r.When, maxText)
		v.code(at.Child("when"), expression.Condition, r.When)
	}
	v.key(at, r)
	v.cost(at.Child("cost"), r.Cost)
	v.meaning(at, r)
	v.queue(at.Child("queue"), r)
	v.limits(at.Child("limits"), r)
	v.response(at.Child("response"), r.Response)
}

func (v *validator) key(at *field.Path, r *v1alpha1.Rule) {
	oneOf(v, at.Child("missingKey"), r.MissingKey, v1alpha1.MissingKeyClientIP, v1alpha1.MissingKeySkip, v1alpha1.MissingKeyReject)
	v.count(at.Child("key"), len(r.Key), maxKeys)
	for i, k := range r.Key {
		v.text(at.Child("key").Index(i), string(k), maxText)
		v.code(at.Child("key").Index(i), expression.Key, string(k))
	}
	if !isTrue(r.Shared) {
		return
	}
	if len(r.Key) > 0 {
		v.add(field.Forbidden(at.Child("key"), "has no meaning with shared: remove one of the two"))
	}
	if r.MissingKey != "" {
		v.add(field.Forbidden(at.Child("missingKey"), "has no meaning with shared: remove one of the two"))
	}
}

func (v *validator) cost(at *field.Path, source string) {
	v.text(at, source, maxText)
	v.code(at, expression.Cost, source)
	if n, constant := constantCost(source); constant && (n < 0 || n > maxUnits) {
		v.invalid(at, source, "must be 0 to %d", maxUnits)
	}
}

// meaning refuses fields where they have none.
func (v *validator) meaning(at *field.Path, r *v1alpha1.Rule) {
	bucket := r.Algorithm == v1alpha1.AlgorithmTokenBucket || r.Algorithm == v1alpha1.AlgorithmLeakyBucket
	switch {
	case !isTrue(r.CountRejected):
	case bucket:
		v.add(field.Forbidden(at.Child("countRejected"), "has a meaning only with FixedWindow, SlidingWindowLog and SlidingWindowCounter"))
	case v.policy.Spec.Mode != v1alpha1.ModeCentral:
		v.add(field.Forbidden(at.Child("countRejected"), "has a meaning only in mode Central"))
	}
}

func (v *validator) queue(at *field.Path, r *v1alpha1.Rule) {
	leaky := r.Algorithm == v1alpha1.AlgorithmLeakyBucket
	switch {
	case leaky && r.Queue == nil:
		v.add(field.Required(at, "LeakyBucket needs one, such as {maxLength: 50, maxWait: 2s}"))
	case !leaky && r.Queue != nil:
		v.add(field.Forbidden(at, "has a meaning only with LeakyBucket"))
	case r.Queue != nil:
		if r.Queue.MaxLength < 1 || r.Queue.MaxLength > maxQueue {
			v.invalid(at.Child("maxLength"), r.Queue.MaxLength, "must be 1 to %d", maxQueue)
		}
		if _, err := ParseDuration(r.Queue.MaxWait); err != nil {
			v.invalid(at.Child("maxWait"), r.Queue.MaxWait, "%s", err)
		}
	}
}

func (v *validator) limits(at *field.Path, r *v1alpha1.Rule) {
	if len(r.Limits) == 0 {
		v.add(field.Required(at, "a rule needs at least one limit"))
	}
	v.count(at, len(r.Limits), maxLimits)
	windows, perTier := sets.New[string](), map[string]int{}
	for i := range r.Limits {
		l, at := &r.Limits[i], at.Index(i)
		if l.Tier != "" && !v.tiers.Has(l.Tier) {
			v.add(field.NotSupported(at.Child("tier"), l.Tier, sets.List(v.tiers)))
		}
		v.limit(at, r, l)
		if id := l.Tier + " " + duration(l.Window).String(); windows.Has(id) {
			v.add(field.Duplicate(at.Child("window"), l.Window))
		} else {
			windows.Insert(id)
		}
		if perTier[l.Tier]++; r.Algorithm == v1alpha1.AlgorithmLeakyBucket && perTier[l.Tier] == 2 {
			v.invalid(at, l.Tier, "LeakyBucket takes one limit for each tier: remove the others")
		}
	}
}

func (v *validator) limit(at *field.Path, r *v1alpha1.Rule, l *v1alpha1.Limit) {
	if l.Requests == nil {
		v.add(field.Required(at.Child("requests"), "how many a window admits"))
		return
	}
	requests := *l.Requests
	if requests < 0 || requests > maxUnits {
		v.invalid(at.Child("requests"), requests, "must be 0 to %d", maxUnits)
	}
	if r.Algorithm == v1alpha1.AlgorithmSlidingWindowLog && requests > maxLogRequests {
		v.invalid(at.Child("requests"), requests, "SlidingWindowLog takes at most %d; use SlidingWindowCounter for more", maxLogRequests)
	}
	v.window(at.Child("window"), l.Window, requests)
	if l.Burst == nil {
		return
	}
	switch {
	case r.Algorithm != v1alpha1.AlgorithmTokenBucket:
		v.add(field.Forbidden(at.Child("burst"), "has a meaning only with TokenBucket"))
	case *l.Burst < 1 || *l.Burst > maxUnits:
		v.invalid(at.Child("burst"), *l.Burst, "must be 1 to %d", maxUnits)
	case requests > 0 && *l.Burst/requests+1 > (1<<52)/max(1, duration(l.Window).Microseconds()):
		v.invalid(at.Child("burst"), *l.Burst, "would take longer than 142 years to refill: lower it, or raise requests")
	}
}

func (v *validator) window(at *field.Path, w v1alpha1.Duration, requests int64) {
	d, err := ParseDuration(w)
	switch {
	case err != nil:
		v.invalid(at, w, "%s", err)
	case d < minWindow || d > maxWindow:
		v.invalid(at, w, "must be 1ms to 744h")
	case requests > d.Microseconds():
		v.invalid(at, w, "%d requests are more than one a microsecond: lengthen the window, or lower requests", requests)
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
