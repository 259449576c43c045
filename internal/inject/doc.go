// Package inject puts the limiter sidecar into pods that asked for it.
//
// It goes in three steps. Facts (the pod, its namespace, the namespace's Services) lead to a Verdict
// with a reason code, and the verdict leads to a changed pod; the first two are pure functions and know
// no client. The webhook gathers the facts, answers with a patch, and counts and reports the verdict.
//
// Injection first takes back what an earlier injection did and then does it anew, so a pod that passes
// through several injectors in any order ends up the same, and passing twice changes nothing.
package inject
