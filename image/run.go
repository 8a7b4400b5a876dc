package image

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A tool is a command of a build. It runs as PID 1 of its own PID namespace, so
// whatever it starts ends with it, and it ends with us; and in a mount namespace
// of its own, so no mount of a build is ever seen by, or left to, the host.
type tool struct {
	argv []string // the first is a path, in root
	env  []string
	root string       // "" is the host's own
	prep func() error // mounts, in the new mount namespace
	line func(string) // gets every line of stdout and stderr
	hold *os.File     // a lock that lasts until the last process ended
	caps bool         // keep all capabilities
}

// tailSize bounds what is kept of a tool's output for the error.
const tailSize = 8 << 10

// run runs the tool to its end. The last of its output comes back with an error.
func (t *tool) run(ctx context.Context) (tail string, err error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return "", err
	}
	// Not exec.Command, which would look in the host's PATH.
	cmd := &exec.Cmd{Path: t.argv[0], Args: t.argv, Env: t.env, Dir: "/", Stdout: pw, Stderr: pw}
	if t.hold != nil {
		cmd.ExtraFiles = []*os.File{t.hold}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot:     t.root,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	done := make(chan error, 1)
	started := make(chan error, 1)
	go onSpareThread(func() { // joined by <-started and <-done
		// The namespace belongs to this thread, which ends with the goroutine.
		// It also is the parent that Pdeathsig watches, so it must stay until
		// the end.
		err := t.isolate()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		_ = pw.Close()
		if err == nil {
			done <- cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		_ = pr.Close()
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	tail = t.read(pr)
	_ = pr.Close()
	err = <-done
	if ctx.Err() != nil {
		return tail, ctx.Err()
	}
	return tail, err
}

// onSpareThread runs f on a thread that ends with it. It never is the main
// thread, which cannot end and whose namespaces are those of /proc/self.
func onSpareThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f() // not unlocked: the thread ends with this goroutine
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
	runtime.UnlockOSThread()
}

// isolate gives the calling thread a mount namespace of its own and takes from
// what it will start everything that an installer does not need.
func (t *tool) isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		if errors.Is(err, unix.EPERM) {
			return os.ErrPermission
		}
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	// The thread has its own umask since it has its own mount namespace.
	unix.Umask(0o022)
	if t.prep != nil {
		if err := t.prep(); err != nil {
			return err
		}
	}
	if t.caps {
		return nil
	}
	keep := map[uintptr]bool{
		unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FOWNER: true,
		unix.CAP_FSETID: true, unix.CAP_SETUID: true, unix.CAP_SETGID: true, unix.CAP_KILL: true,
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("prctl", err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// read takes the output line by line and returns the end of it.
func (t *tool) read(r io.Reader) string {
	var tail []byte
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		tail = append(tail, line...)
		if len(tail) > tailSize {
			tail = append(tail[:0], tail[len(tail)-tailSize:]...)
		}
		if t.line != nil && len(line) > 0 {
			t.line(strings.TrimRight(string(line), "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return string(tail)
		}
	}
}

// bind mounts a file or folder of the host read-only over another.
func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: to, Err: err}
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID)
	if err := unix.Mount("", to, "", flags, ""); err != nil {
		return &os.PathError{Op: "remount", Path: to, Err: err}
	}
	return nil
}

// clean makes the text of a tool fit for an error: the last lines, printable.
func clean(out string, lines int) string {
	all := strings.Split(strings.TrimSpace(out), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == 0xfffd {
			return ' '
		}
		return r
	}, strings.Join(all, "\n"))
}

// lookTool finds a program of the host in the usual places as well as in PATH.
func lookTool(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}
