package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// An account is who something is done as.
type account struct {
	arenero.User

	groups []uint32
}

// account finds a user by name or number; "" is the sandbox's own.
func (a *Agent) account(name string) (account, error) {
	own := a.identity().user
	if name == "" || name == own.Name {
		return own, nil
	}
	u, err := findUser(name)
	if err != nil {
		return account{}, err
	}
	if a.cfg.Init && u.UID == a.uid {
		return account{}, arenero.Errorf(arenero.Denied, "use account", "", "the agent's own account is not for use")
	}
	if !a.switches && u.UID != a.uid {
		return account{}, arenero.Errorf(arenero.Denied, "use account", "", "this agent cannot change users")
	}
	return u, nil
}

func findUser(name string) (account, error) {
	var u account
	found := false
	id, numErr := strconv.ParseUint(name, 10, 31)
	err := eachLine("/etc/passwd", 7, func(f []string) bool {
		if f[0] != name && f[2] != name {
			return true
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			return true
		}
		u.User = arenero.User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5]}
		found = true
		return false
	})
	switch {
	case found:
	case numErr == nil:
		u.User = arenero.User{Name: name, UID: uint32(id), GID: uint32(id), Home: "/"}
		return u, nil
	case err != nil:
		return u, arenero.Errorf(arenero.Unavailable, "find user", "", "%w", err)
	default:
		return u, arenero.Errorf(arenero.NotFound, "find user", "", "no user is called %.64q here", name)
	}
	u.groups = groupsOf(u.Name)
	return u, nil
}

func groupsOf(name string) []uint32 {
	var groups []uint32
	_ = eachLine("/etc/group", 4, func(f []string) bool {
		for m := range strings.SplitSeq(f[3], ",") {
			if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && m == name && len(groups) < 256 {
				groups = append(groups, uint32(gid))
			}
		}
		return true
	})
	return groups // an image without the file has no groups
}

// eachLine visits the lines of a colon-separated file of n fields.
func eachLine(path string, n int, visit func([]string) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(io.LimitReader(f, 4<<20))
	for s.Scan() {
		if fields := strings.Split(s.Text(), ":"); len(fields) >= n && !visit(fields) {
			return nil
		}
	}
	return s.Err()
}

// as runs fn with the user's rights to files, and no more: on a thread of its own
// whose effective ids are the user's and whose effective capabilities are none.
//
// The real and saved ids stay the agent's. They are what decides who may send a
// signal to a thread: with the user's there, user code could end the agent while
// it works for that user.
func (a *Agent) as(u account, fn func() error) error {
	if !a.switches || u.UID == a.uid {
		return fn()
	}
	a.capsMu.RLock()
	defer a.capsMu.RUnlock()
	done := make(chan error, 1)
	go func() { // joined below
		runtime.LockOSThread()
		err := a.become(u)
		if err == nil {
			err = fn()
		}
		if a.unbecome() == nil {
			runtime.UnlockOSThread() // otherwise the thread dies with the goroutine
		}
		done <- err
	}()
	return <-done
}

const sameID = ^uintptr(0)

func (a *Agent) become(u account) error {
	if err := setGroups(u.groups); err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, sameID, uintptr(u.GID), sameID); e != 0 {
		return fmt.Errorf("set group: %w", e)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, sameID, uintptr(u.UID), sameID); e != 0 {
		return fmt.Errorf("set user: %w", e)
	}
	c := a.caps
	c.effective = 0
	return c.setHere()
}

func (a *Agent) unbecome() error {
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, sameID, uintptr(a.uid), sameID); e != 0 {
		return e
	}
	if err := a.caps.setHere(); err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, sameID, uintptr(a.gid), sameID); e != 0 {
		return e
	}
	return setGroups(a.groups)
}

func setGroups(g []uint32) error {
	var p unsafe.Pointer
	if len(g) > 0 {
		p = unsafe.Pointer(&g[0])
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(g)), uintptr(p), 0); e != 0 {
		return fmt.Errorf("set groups: %w", e)
	}
	return nil
}
