// Package controllers turns what stands in Kubernetes into what sidecars enforce, and what they acknowledged into
// status. It gathers, decides by small pure functions, and writes at the end.
//
// The unit of work is a namespace: a policy, its pods, its Secrets and its store change together, and events that come
// close after each other become one pass.
package controllers
