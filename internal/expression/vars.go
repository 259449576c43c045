package expression

import (
	"reflect"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
)

var jsonValueType = reflect.TypeFor[*structpb.Value]()

// Strings is a set of headers or query parameters: looked up by name, and copied only where an expression walks
// over all. Header names are in lower case.
type Strings struct {
	Get func(name string) (value string, found bool)
	All func() map[string]string
}

// Vars is what an expression sees of one request. The zero values of absent things are what CEL reads.
type Vars struct {
	Method, Path, Host string
	Headers, Query     Strings
	Size               int64 // of the body in bytes; -1 where unknown
	SourceAddress      string
	Authenticated      bool
	Invalid            bool // a credential was presented and is not valid
	ID, Key, Tier      string
	Claims             map[string]any
	Decision           Decision // for Body alone
}

// Decision is what a Body sees of the refusal.
type Decision struct {
	Limit, Remaining, CurrentCount int64
	RetryAfter                     int64 // seconds; 0 where the request can never be admitted
	Policy, Rule, Tier             string
}

// ResolveName implements CEL's activation.
//
//nolint:gocyclo // a flat table of names
func (v *Vars) ResolveName(name string) (any, bool) {
	switch name {
	case "request.method":
		return v.Method, true
	case "request.path":
		return v.Path, true
	case "request.host":
		return v.Host, true
	case "request.headers":
		return stringMap(v.Headers), true
	case "request.query":
		return stringMap(v.Query), true
	case "request.size":
		return v.Size, true
	case "source.address":
		return v.SourceAddress, true
	case "identity.authenticated":
		return v.Authenticated, true
	case "identity.invalid":
		return v.Invalid, true
	case "identity.id":
		return v.ID, true
	case "identity.key":
		return v.Key, true
	case "identity.tier":
		return v.Tier, true
	case "identity.claims":
		return claimMap(v.Claims), true
	default:
		return v.Decision.resolve(name)
	}
}

// Parent implements CEL's activation.
func (*Vars) Parent() cel.Activation { return nil }

func (d *Decision) resolve(name string) (any, bool) {
	switch name {
	case "decision.limit":
		return d.Limit, true
	case "decision.remaining":
		return d.Remaining, true
	case "decision.currentCount":
		return d.CurrentCount, true
	case "decision.retryAfter":
		return d.RetryAfter, true
	case "decision.policy":
		return d.Policy, true
	case "decision.rule":
		return d.Rule, true
	case "decision.tier":
		return d.Tier, true
	default:
		return nil, false
	}
}

// absentIsEmpty is a CEL map of strings to values in which an absent entry reads as "";
// `in` still tells it apart, while has() is always true.
type absentIsEmpty struct {
	find func(name string) (ref.Val, bool)
	all  func() traits.Mapper
}

func stringMap(s Strings) ref.Val {
	return absentIsEmpty{
		find: func(name string) (ref.Val, bool) {
			if s.Get == nil {
				return nil, false
			}
			value, found := s.Get(name)
			return types.String(value), found
		},
		all: func() traits.Mapper {
			if s.All == nil {
				return types.NewStringStringMap(types.DefaultTypeAdapter, nil)
			}
			return types.NewStringStringMap(types.DefaultTypeAdapter, s.All())
		},
	}
}

func claimMap(claims map[string]any) ref.Val {
	return absentIsEmpty{
		find: func(name string) (ref.Val, bool) {
			value, found := claims[name]
			return types.DefaultTypeAdapter.NativeToValue(value), found
		},
		all: func() traits.Mapper { return types.NewStringInterfaceMap(types.DefaultTypeAdapter, claims) },
	}
}

func (m absentIsEmpty) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	if value, found := m.find(string(name)); found {
		return value, true
	}
	return types.String(""), true
}

func (m absentIsEmpty) Get(key ref.Val) ref.Val {
	value, _ := m.Find(key)
	return value
}

func (m absentIsEmpty) Contains(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	_, found := m.find(string(name))
	return types.Bool(found)
}

func (m absentIsEmpty) Iterator() traits.Iterator { return m.all().Iterator() }

func (m absentIsEmpty) Size() ref.Val { return m.all().Size() }

func (m absentIsEmpty) ConvertToNative(t reflect.Type) (any, error) {
	return m.all().ConvertToNative(t)
}

func (m absentIsEmpty) ConvertToType(t ref.Type) ref.Val { return m.all().ConvertToType(t) }

func (m absentIsEmpty) Equal(other ref.Val) ref.Val { return m.all().Equal(other) }

func (m absentIsEmpty) Type() ref.Type { return types.MapType }

func (m absentIsEmpty) Value() any { return m.all().Value() }
