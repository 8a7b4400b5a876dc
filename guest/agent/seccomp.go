package agent

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The agent puts a filter on itself, so that everything it starts has it too and
// an exec pays nothing for it. The filter closes user namespaces, which would give
// user code a full set of capabilities inside the sandbox:
//
//   - clone3 does not exist: its flags are in memory, where no filter can look;
//     libc falls back to clone;
//   - clone and unshare with CLONE_NEWUSER, and setns, are not permitted;
//   - calls of a foreign architecture do not exist.
//
// The mount calls stay open for the agent's own use; user code has not got the
// capability.
func filter() ([]unix.SockFilter, error) {
	var arch uint32
	switch runtime.GOARCH {
	case "amd64":
		arch = unix.AUDIT_ARCH_X86_64
	case "arm64":
		arch = unix.AUDIT_ARCH_AARCH64
	default:
		return nil, fmt.Errorf("no seccomp filter for %s", runtime.GOARCH)
	}
	const (
		offNR, offArch, offArg0 = 0, 4, 16
		allow                   = 0x7fff0000
		errno                   = 0x00050000
		x32                     = 0x40000000
	)
	ld := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	ret := func(v uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
	}
	return []unix.SockFilter{
		0:  ld(offArch),
		1:  jump(unix.BPF_JEQ, arch, 0, 9),             // -> 11 ENOSYS
		2:  ld(offNR),                                  //
		3:  jump(unix.BPF_JGE, x32, 7, 0),              // -> 11
		4:  jump(unix.BPF_JEQ, unix.SYS_CLONE3, 6, 0),  // -> 11
		5:  jump(unix.BPF_JEQ, unix.SYS_SETNS, 6, 0),   // -> 12 EPERM
		6:  jump(unix.BPF_JEQ, unix.SYS_CLONE, 1, 0),   // -> 8
		7:  jump(unix.BPF_JEQ, unix.SYS_UNSHARE, 0, 2), // -> 8, or 10 allow
		8:  ld(offArg0),
		9:  jump(unix.BPF_JSET, unix.CLONE_NEWUSER, 2, 0), // -> 12
		10: ret(allow),
		11: ret(errno | uint32(unix.ENOSYS)),
		12: ret(errno | uint32(unix.EPERM)),
	}, nil
}

// confine puts the filter on every thread of this process, for good.
func confine() error {
	prog, err := filter()
	if err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	switch {
	case errno != 0:
		return fmt.Errorf("install seccomp filter: %w", errno)
	case r != 0:
		return fmt.Errorf("install seccomp filter: thread %d cannot take it", r)
	}
	return nil
}
