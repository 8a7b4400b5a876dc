package gvisor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// Dispatch must be the first thing a program does that uses this engine: gVisor
// starts its processes (the Sentry that is a box's kernel, and short-lived
// helpers) by executing the program that links it. In such a process Dispatch
// runs that part of gVisor and never returns; otherwise it returns at once.
//
// The decision is made on the arguments alone, since the Sentry is started with
// an empty environment. See gvisor.dev/gvisor/runsc/sandbox for the names.
func Dispatch() {
	if !reexecuted(os.Args) {
		return
	}
	if filepath.Base(os.Args[0]) == sentryName {
		// The processes of a box die with the thread that starts the first of them
		// (PR_SET_PDEATHSIG). That is this goroutine's, so it keeps its thread for
		// good: nobody else's idle thread, that thrift might end.
		runtime.LockOSThread()
		go thrift()
	}
	maincli.Main()
	os.Exit(0)
}

// sentryName is what gVisor calls the process that is a box's kernel.
const sentryName = "runsc-sandbox"

func reexecuted(args []string) bool {
	if len(args) == 0 {
		return false
	}
	// "runsc-sandbox", "runsc-gofer" and "runsc[getUsernsFD]".
	if strings.HasPrefix(filepath.Base(args[0]), "runsc") {
		return true
	}
	// The child that unmounts /proc for the Sentry gets no name of its own.
	return args[0] == "/proc/self/exe"
}
