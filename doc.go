// Package arenero is the vocabulary of the sandbox: the words that every other
// package of this module speaks. It imports the standard library only, starts
// no goroutine and does no I/O.
//
// # The life of a sandbox
//
// A [Sandbox] is one isolated computer with an id, an owner, limits and a
// [State]. An [Engine] makes the box it lives in from a [Box]: a read-only
// [Image], limits and a network end. What the engine gives back is an
// [Instance]: a running root file system with one wire to the guest agent, PID 1
// inside. Everything a user does in a sandbox (processes, files, kernels, ports)
// is asked of that agent through [Guest], so it is written once and is the same
// on every engine. The host decides who may ask, when the sandbox sleeps and
// when it ends.
//
// # Trust
//
// Nothing that comes out of a sandbox is trusted: not its sizes, its names, its
// exit codes, nor the agent's own replies once code nobody reviewed has run
// beside it. Implementations of [Guest] bound and validate all they read.
package arenero
