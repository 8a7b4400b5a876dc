package agent

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// initialize does what only PID 1 may do, to this process and for good.
func initialize() error {
	// Not ignored, which children would inherit: caught, and forgotten.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	unix.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil && unix.Getpid() != 1 {
		return fmt.Errorf("become reaper: %w", err)
	}
	if err := shedInheritance(); err != nil {
		return err
	}
	_, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("forbid new privileges: %w", e)
	}
	return confine()
}
