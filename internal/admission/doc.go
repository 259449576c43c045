// Package admission refuses RateLimitPolicies and RateLimitStores that can't mean what they say, with the
// field's path and, in expressions, line and column, and warns about what is legal but probably wrong.
//
// It holds the webhooks and the checks of stores; the checks of policies are those of internal/compile,
// the same that the stand-alone form makes of files.
package admission
