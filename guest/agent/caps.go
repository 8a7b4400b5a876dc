package agent

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// caps are the effective, permitted and inheritable sets of a thread.
type caps struct{ effective, permitted, inheritable uint64 }

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

const capVersion3 = 0x20080522

func getCaps() (caps, error) {
	h := capHeader{version: capVersion3}
	var d [2]capData
	if _, _, e := syscall.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0); e != 0 {
		return caps{}, fmt.Errorf("read capabilities: %w", e)
	}
	join := func(lo, hi uint32) uint64 { return uint64(hi)<<32 | uint64(lo) }
	return caps{
		effective:   join(d[0].effective, d[1].effective),
		permitted:   join(d[0].permitted, d[1].permitted),
		inheritable: join(d[0].inheritable, d[1].inheritable),
	}, nil
}

func (c caps) data() [2]capData {
	return [2]capData{
		{uint32(c.effective), uint32(c.permitted), uint32(c.inheritable)},
		{uint32(c.effective >> 32), uint32(c.permitted >> 32), uint32(c.inheritable >> 32)},
	}
}

// setHere sets the capabilities of the calling thread only.
func (c caps) setHere() error {
	h, d := capHeader{version: capVersion3}, c.data()
	if _, _, e := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0); e != 0 {
		return fmt.Errorf("set capabilities: %w", e)
	}
	return nil
}

// setAll sets the capabilities of every thread of this process.
func (c caps) setAll() error {
	h, d := capHeader{version: capVersion3}, c.data()
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0)
	if e != 0 {
		return fmt.Errorf("set capabilities: %w", e)
	}
	return nil
}

// capMask has one bit for each of the capabilities that are needed only until the
// sandbox is claimed: they mount its disk and set limits of warm kernels.
const untilClaim = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_SETPCAP

// shedInheritance makes sure that no program the agent starts can gain a
// capability: nothing is inheritable or ambient, and the bounding set is empty.
func shedInheritance() error {
	c, err := getCaps()
	if err != nil {
		return err
	}
	c.inheritable = 0 // which clears the ambient set too
	if err := c.setAll(); err != nil {
		return err
	}
	if c.effective&(1<<unix.CAP_SETPCAP) == 0 {
		return nil // the engine has not granted it; exec clears all sets anyway
	}
	for i := uintptr(0); i <= unix.CAP_LAST_CAP; i++ {
		_, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, i, 0)
		if e != 0 && e != unix.EINVAL { // EINVAL: this kernel has fewer
			return fmt.Errorf("empty bounding set: %w", e)
		}
	}
	return nil
}
