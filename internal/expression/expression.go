// Package expression says what a CEL expression in a policy may see and what it costs at most.
//
// It is a leaf: the compiler type-checks with it, the sidecar evaluates with it, so that
// what was admitted also runs. It knows neither Kubernetes nor HTTP.
package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// Kind is the place in a policy where an expression stands; it fixes the result's type and what can be seen.
type Kind uint8

// The kinds.
const (
	Condition Kind = iota + 1 // bool: when
	Key                       // string: key
	Cost                      // int: cost
	Body                      // string, or what becomes JSON: response.body; sees decision too
)

const (
	maxSource = 8 << 10
	// costLimit bounds one evaluation, in CEL's own cost units: a scan of the longest header, a few times over.
	costLimit = 100_000
)

// Error tells where an expression is wrong. Line and Column count from 1.
type Error struct {
	Line, Column int
	Message      string
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message) }

// ErrResult tells that an expression yielded a value of another type than its kind wants.
var ErrResult = errors.New("wrong type of result")

// Env compiles expressions. It is safe for concurrent use.
type Env struct{ request, body *cel.Env }

// New returns an Env.
func New() (*Env, error) {
	stringsByName := cel.MapType(cel.StringType, cel.StringType)
	request, err := cel.NewEnv(
		cel.Variable("request.method", cel.StringType),
		cel.Variable("request.path", cel.StringType),
		cel.Variable("request.host", cel.StringType),
		cel.Variable("request.headers", stringsByName),
		cel.Variable("request.query", stringsByName),
		cel.Variable("request.size", cel.IntType),
		cel.Variable("source.address", cel.StringType),
		cel.Variable("identity.authenticated", cel.BoolType),
		cel.Variable("identity.invalid", cel.BoolType),
		cel.Variable("identity.id", cel.StringType),
		cel.Variable("identity.key", cel.StringType),
		cel.Variable("identity.claims", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("identity.tier", cel.StringType),
		ext.Strings(),
	)
	if err != nil {
		return nil, fmt.Errorf("expression environment: %w", err)
	}
	body, err := request.Extend(
		cel.Variable("decision.limit", cel.IntType),
		cel.Variable("decision.remaining", cel.IntType),
		cel.Variable("decision.currentCount", cel.IntType),
		cel.Variable("decision.retryAfter", cel.IntType),
		cel.Variable("decision.policy", cel.StringType),
		cel.Variable("decision.rule", cel.StringType),
		cel.Variable("decision.tier", cel.StringType),
	)
	if err != nil {
		return nil, fmt.Errorf("expression environment: %w", err)
	}
	return &Env{request: request, body: body}, nil
}

// Compile parses and type-checks source. Its error is an *Error.
func (e *Env) Compile(kind Kind, source string) (*Program, error) {
	if len(source) > maxSource {
		return nil, &Error{Line: 1, Column: 1, Message: fmt.Sprintf("longer than %d bytes", maxSource)}
	}
	env := e.request
	if kind == Body {
		env = e.body
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, firstIssue(issues)
	}
	if want := kind.result(); want != nil && !ast.OutputType().IsExactType(want) && !ast.OutputType().IsExactType(cel.DynType) {
		return nil, &Error{Line: 1, Column: 1, Message: fmt.Sprintf("must yield %s, but yields %s", want, ast.OutputType())}
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
	if err != nil {
		return nil, &Error{Line: 1, Column: 1, Message: err.Error()}
	}
	return &Program{program: program}, nil
}

func (k Kind) result() *cel.Type {
	switch k {
	case Condition:
		return cel.BoolType
	case Key:
		return cel.StringType
	case Cost:
		return cel.IntType
	default:
		return nil
	}
}

// fields is what can be asked of each variable, for whoever misspelled one.
var fields = map[string]string{
	"request":  "method, path, host, headers, query, size",
	"source":   "address",
	"identity": "authenticated, invalid, id, key, claims, tier",
	"decision": "limit, remaining, currentCount, retryAfter, policy, rule, tier, in bodies only",
}

func firstIssue(issues *cel.Issues) *Error {
	if all := issues.Errors(); len(all) > 0 {
		found := all[0]
		message := found.Message
		// The variables are qualified names, so CEL blames the whole variable for a field that it lacks.
		for name, has := range fields {
			if strings.HasPrefix(message, "undeclared reference to '"+name+"'") {
				message = fmt.Sprintf("%s has no such field here; its fields are %s", name, has)
			}
		}
		return &Error{Line: found.Location.Line(), Column: found.Location.Column() + 1, Message: message}
	}
	return &Error{Line: 1, Column: 1, Message: issues.Err().Error()}
}

// Program is a compiled expression. It is safe for concurrent use.
type Program struct{ program cel.Program }

// Bool evaluates a Condition.
func (p *Program) Bool(vars *Vars) (bool, error) {
	v, err := evaluate[types.Bool](p, vars)
	return bool(v), err
}

// String evaluates a Key.
func (p *Program) String(vars *Vars) (string, error) {
	v, err := evaluate[types.String](p, vars)
	return string(v), err
}

// Int evaluates a Cost.
func (p *Program) Int(vars *Vars) (int64, error) {
	v, err := evaluate[types.Int](p, vars)
	return int64(v), err
}

// Text evaluates a Body: a string as it is, anything else as JSON.
func (p *Program) Text(vars *Vars) ([]byte, error) {
	v, _, err := p.program.Eval(vars)
	if err != nil {
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	if s, ok := v.(types.String); ok {
		return []byte(s), nil
	}
	native, err := v.ConvertToNative(jsonValueType)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not JSON: %w", ErrResult, v.Type().TypeName(), err)
	}
	text, err := json.Marshal(native)
	if err != nil {
		return nil, fmt.Errorf("encode body: %w", err)
	}
	return text, nil
}

func evaluate[T ref.Val](p *Program, vars *Vars) (T, error) {
	var none T
	v, _, err := p.program.Eval(vars)
	if err != nil {
		return none, fmt.Errorf("evaluate: %w", err)
	}
	typed, ok := v.(T)
	if !ok {
		return none, fmt.Errorf("%w: %s", ErrResult, v.Type().TypeName())
	}
	return typed, nil
}
