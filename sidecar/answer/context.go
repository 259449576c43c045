package answer

import "context"

type fieldsKey struct{}

// WithFields hands the fields of an admitted request to whoever writes its answer.
func WithFields(ctx context.Context, f Fields) context.Context {
	return context.WithValue(ctx, fieldsKey{}, f)
}

// FieldsFrom returns them.
func FieldsFrom(ctx context.Context) Fields {
	f, _ := ctx.Value(fieldsKey{}).(Fields)
	return f
}
