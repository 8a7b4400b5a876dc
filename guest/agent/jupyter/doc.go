// Package jupyter runs real Jupyter kernels inside a sandbox and speaks the
// Jupyter messaging protocol 5.x with them: ZMTP over unix sockets, signed with
// HMAC-SHA256.
//
// # The life of a kernel
//
// A kernelspec installed in the image says how an interpreter is started. A
// [Manager] starts it under a name, connects its five sockets, and hands cells to
// it one after another. The name outlives the interpreter: when the process ends
// the kernel is "dead" until [Manager.Restart] gives the name a fresh one.
//
// Everything that comes from a kernel is user code's word: sizes, counts and
// order are bounded here, only messages that answer our own request count, and a
// kernel that breaks the protocol is killed rather than waited for.
//
// The package starts no process itself: [Config.Start] does, with the rights of
// the sandbox's user.
package jupyter
