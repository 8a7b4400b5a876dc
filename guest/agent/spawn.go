package agent

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A spawn is one fork and exec. The standard library's cannot set rlimits in the
// child; setting them from outside leaves a moment in which a fork bomb forks, and
// a shim that sets them costs a second exec, which is the dear part under gVisor.
// So this is the standard library's way (vfork: the parent's thread waits until
// the child has exec'ed) with a few more calls in the child.
type spawn struct {
	path   *byte
	argv   []*byte
	envv   []*byte
	dir    *byte
	fds    [3]int // what becomes 0, 1 and 2; each above 2
	tty    bool   // fd 0 becomes the controlling terminal
	change bool   // of user; needs the capabilities
	uid    uint32
	gid    uint32
	groups []uint32
	limits []limit
	nnp    bool // set no_new_privs: for an agent that has not got it itself

	stage int // written by the child: what it was doing when it gave up
	errno syscall.Errno
}

type limit struct {
	resource int
	cur, max uint64
}

var stages = [...]string{
	"fork", "make session", "set limit", "set groups", "set group", "set user",
	"forbid new privileges", "enter folder", "set up descriptors", "take terminal", "run program",
}

// newSpawn prepares everything the child must not allocate.
func newSpawn(path string, argv, env []string, dir string) (*spawn, error) {
	s := &spawn{}
	var err error
	if s.path, err = syscall.BytePtrFromString(path); err != nil {
		return nil, err
	}
	if s.argv, err = syscall.SlicePtrFromStrings(argv); err != nil {
		return nil, err
	}
	if s.envv, err = syscall.SlicePtrFromStrings(env); err != nil {
		return nil, err
	}
	s.dir, err = syscall.BytePtrFromString(dir)
	return s, err
}

// start makes the child and returns its pid. When the exec did not come about,
// pid is that of the dead child, which must still be waited for, or 0.
func (s *spawn) start() (pid int, err error) {
	for _, fd := range s.fds {
		if fd <= 2 {
			return 0, fmt.Errorf("descriptor %d is in the way", fd)
		}
	}
	syscall.ForkLock.Lock()
	p, errno := s.fork()
	afterFork()
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return 0, fmt.Errorf("%s: %w", stages[0], syscall.Errno(errno))
	}
	if s.errno != 0 {
		return int(p), &spawnError{stages[s.stage], s.errno, s.stage == len(stages)-1}
	}
	return int(p), nil
}

type spawnError struct {
	stage string
	errno syscall.Errno
	exec  bool
}

func (e *spawnError) Error() string { return e.stage + ": " + e.errno.Error() }
func (e *spawnError) Unwrap() error { return e.errno }

// fork makes the child and, in it, runs until exec. Its frame must stay apart
// from its caller's, which the child would overwrite; and in the child nothing may
// allocate, grow the stack or touch a lock.
//
//go:noinline
//go:norace
//go:nocheckptr
func (s *spawn) fork() (pid, errno uintptr) {
	beforeFork()
	pid, errno = rawVfork(unix.SYS_CLONE, uintptr(unix.SIGCHLD|unix.CLONE_VFORK|unix.CLONE_VM), 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	afterForkInChild()

	var e syscall.Errno
	s.stage = 1
	if _, _, e = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
		goto fail
	}
	s.stage = 2
	for i := range s.limits {
		l := &s.limits[i]
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(l.resource), uintptr(unsafe.Pointer(&l.cur)), 0, 0, 0); e != 0 {
			goto fail
		}
	}
	if s.change {
		var groups unsafe.Pointer
		if len(s.groups) > 0 {
			groups = unsafe.Pointer(&s.groups[0])
		}
		s.stage = 3
		if _, _, e = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(s.groups)), uintptr(groups), 0); e != 0 {
			goto fail
		}
		s.stage = 4
		if _, _, e = syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(s.gid), uintptr(s.gid), uintptr(s.gid)); e != 0 {
			goto fail
		}
		s.stage = 5
		if _, _, e = syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(s.uid), uintptr(s.uid), uintptr(s.uid)); e != 0 {
			goto fail
		}
	}
	if s.nnp {
		s.stage = 6
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
			goto fail
		}
	}
	s.stage = 7
	if _, _, e = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(s.dir)), 0, 0); e != 0 {
		goto fail
	}
	s.stage = 8
	for i := range s.fds {
		if _, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(s.fds[i]), uintptr(i), 0); e != 0 {
			goto fail
		}
	}
	// What others in this process left open without a mark stays here. Kernels too
	// old to know the call have nothing but the marks.
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
	if s.tty {
		s.stage = 9
		if _, _, e = syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			goto fail
		}
	}
	s.stage = 10
	_, _, e = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(s.path)),
		uintptr(unsafe.Pointer(&s.argv[0])), uintptr(unsafe.Pointer(&s.envv[0])))
fail:
	s.errno = e
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT, 127, 0, 0)
	}
}

func rawVfork(trap, a1, a2, a3 uintptr) (r1, err uintptr)

// The runtime's hooks around a fork. gVisor's own packages use them in this way,
// and the runtime promises to keep them.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()
