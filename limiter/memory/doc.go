// Package memory keeps counters in this process. It decides exactly as package redis does;
// package model says what both must do.
//
// Time is counted in microseconds since the Unix epoch: the wall clock is read once, when the store is
// made, and only monotonic time is added to it.
package memory
