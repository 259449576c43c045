// Package answer writes what callers see of a decision: header fields in the three dialects, and the bodies of
// refusals. It knows HTTP and the compiled rules, and decides nothing.
package answer

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/sidecar/rules"
)

// names are the fields that are ours alone: an upstream's are replaced.
var names = []string{
	"RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
	"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Shadow",
}

// Decided is a rule that applied and what was decided.
type Decided struct {
	rules.Applied
	limiter.Result
}

// Fields are the header fields that tell how the limits stand.
type Fields map[string]string

// Set replaces a header's fields of all these names, unless there is nothing to say. They go out as the draft spells them, not
// in Go's canonical form.
func (f Fields) Set(h http.Header) {
	if len(f) == 0 {
		return
	}
	for _, name := range names {
		h.Del(name)
	}
	for name, value := range f {
		h[name] = []string{value}
	}
}

// standing is one limit that is shown.
type standing struct {
	item   string
	window time.Duration
	rules.Response
	limiter.State
}

// FieldsOf writes the fields of the IETF draft "RateLimit header fields for HTTP" and of the two older dialects. In the older,
// which have room for one limit, the one with the least left speaks. Rules in Shadow don't limit: they are named where they
// would have refused.
func FieldsOf(list []Decided, now time.Time) Fields {
	fields := Fields{}
	var structured, legacy, extension []standing
	var shadow httpsfv.List
	for _, d := range list {
		if d.Limit.Shadow {
			if !d.Allowed && d.Rule.Response.RateLimit {
				shadow = append(shadow, httpsfv.NewItem(d.Rule.Policy.ShortName+"/"+d.Rule.Name))
			}
			continue
		}
		for i, state := range d.Limits {
			s := standing{d.Items[i], d.Limit.Limits[i].Window, d.Rule.Response, state}
			s.Limit = d.Limit.Limits[i].Requests
			if s.RateLimit {
				structured = append(structured, s)
			}
			if s.Legacy {
				legacy = append(legacy, s)
			}
			if s.XRateLimit {
				extension = append(extension, s)
			}
		}
	}
	fields.structured(structured)
	if len(shadow) > 0 {
		fields.marshal("RateLimit-Shadow", shadow)
	}
	fields.single("RateLimit-", legacy, now)
	fields.single("X-RateLimit-", extension, now)
	return fields
}

func (f Fields) structured(list []standing) {
	if len(list) == 0 {
		return
	}
	var policy, limit httpsfv.List
	for _, s := range list {
		quota := httpsfv.NewItem(s.item)
		quota.Params.Add("q", s.Limit)
		quota.Params.Add("w", seconds(s.window))
		policy = append(policy, quota)
		left := httpsfv.NewItem(s.item)
		left.Params.Add("r", s.Remaining)
		left.Params.Add("t", seconds(s.ResetAfter))
		limit = append(limit, left)
	}
	f.marshal("RateLimit-Policy", policy)
	f.marshal("RateLimit", limit)
}

// marshal leaves a field out rather than send one that is not well-formed; names of policies and rules always are.
func (f Fields) marshal(name string, list httpsfv.List) {
	if text, err := httpsfv.Marshal(list); err == nil {
		f[name] = text
	}
}

func (f Fields) single(prefix string, list []standing, now time.Time) {
	if len(list) == 0 {
		return
	}
	s := slices.MinFunc(list, func(a, b standing) int {
		return cmp.Or(cmp.Compare(a.Remaining, b.Remaining), cmp.Compare(b.ResetAfter, a.ResetAfter))
	})
	reset := seconds(s.ResetAfter)
	if s.UnixReset {
		reset = now.Add(s.ResetAfter + time.Second - 1).Unix()
	}
	f[prefix+"Limit"] = strconv.FormatInt(s.Limit, 10)
	f[prefix+"Remaining"] = strconv.FormatInt(s.Remaining, 10)
	f[prefix+"Reset"] = strconv.FormatInt(reset, 10)
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	return int64(d/time.Second) + min(1, int64(d%time.Second))
}

func describe(s limiter.State, window time.Duration) string {
	return fmt.Sprintf("%d of %d requests per %s are used", s.Current, s.Limit, rules.FormatWindow(window))
}
