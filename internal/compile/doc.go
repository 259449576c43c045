// Package compile turns policies into what sidecars enforce: it fills in defaults, makes every check that a schema
// can't make, and assembles a pod's Update from policies, secrets and shares.
//
// It is pure: no client, no clock, no network. The same inputs give the same bytes. It may know api, proto and
// internal/expression.
package compile
