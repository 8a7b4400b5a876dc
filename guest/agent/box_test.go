package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// A box is the real agent as PID 1 of its own namespaces, under its own account
// with the capabilities an engine grants and nothing else, on a root file system
// that is read-only, with FIFOs for a wire: what gVisor gives it, on Linux.

const (
	boxStage = "ARENERO_TEST_BOX"
	agentID  = 65533
)

var granted = []uintptr{
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER,
	unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_SETPCAP, unix.CAP_SYS_PTRACE,
}

// enterBox is the child: it makes the root file system and becomes the agent.
func enterBox(root string) {
	if err := becomeAgent(root); err != nil {
		fmt.Fprintln(os.Stderr, "enter box:", err)
		os.Exit(99)
	}
}

func becomeAgent(root string) error {
	runtime.LockOSThread()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("root", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{
		"proc", "dev", "sys", "run", "tmp", "workspace", "home/user", ".arenero", "disk", "var/tmp", "etc", "usr", "bin", "lib", "lib64", "root",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"usr", "bin", "lib", "lib64", "dev"} {
		if err := unix.Mount("/"+dir, filepath.Join(root, dir), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	files := map[string]string{
		"etc/passwd":         "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nother:x:1001:1001::/tmp:/bin/sh\nagent:x:65533:65533::/:/bin/sh\n",
		"etc/group":          "root:x:0:\nuser:x:1000:\nextra:x:77:user\n",
		"home/user/.profile": "# from the image\n",
		"workspace/readme":   "from the image\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Chown(filepath.Join(root, "workspace/readme"), 1000, 1000); err != nil {
		return err
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "workspace/link")); err != nil {
		return err
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		return err
	}
	// The agent's binary comes in on a descriptor; a file of its own in the box.
	agent, err := os.ReadFile(os.Getenv("ARENERO_TEST_AGENT"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, ".arenero/guest"), agent, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "mode=755"); err != nil {
		return fmt.Errorf("make read-only: %w", err)
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return err
	}
	if err := dropTo(agentID); err != nil {
		return err
	}
	args := append([]string{"/.arenero/guest", "init", "--wire=stdio"}, strings.Fields(os.Getenv("ARENERO_TEST_ARGS"))...)
	return syscall.Exec(args[0], args, []string{"PATH=/usr/bin:/bin", "FROM_IMAGE=yes"})
}

// dropTo changes to an account and keeps what is granted, as an engine does.
func dropTo(id uintptr) error {
	raw := func(name string, nr, a, b, c uintptr) error {
		if _, _, e := syscall.RawSyscall(nr, a, b, c); e != 0 {
			return fmt.Errorf("%s: %w", name, e)
		}
		return nil
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&hdr, &have[0]); err != nil {
		return err
	}
	// Root of a container or a lent machine may lack some.
	permitted := uint64(have[1].Permitted)<<32 | uint64(have[0].Permitted)
	var want uint64
	var may []uintptr
	for _, c := range granted {
		if permitted&(1<<c) != 0 {
			want |= 1 << c
			may = append(may, c)
		}
	}
	data := [2]unix.CapUserData{
		{Effective: uint32(want), Permitted: uint32(want), Inheritable: uint32(want)},
		{Effective: uint32(want >> 32), Permitted: uint32(want >> 32), Inheritable: uint32(want >> 32)},
	}
	if err := errors.Join(
		unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0),
		raw("setgroups", unix.SYS_SETGROUPS, 0, 0, 0),
		raw("setresgid", unix.SYS_SETRESGID, id, id, id),
		raw("setresuid", unix.SYS_SETRESUID, id, id, id),
		unix.Capset(&hdr, &data[0]),
	); err != nil {
		return err
	}
	for _, c := range may {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0); err != nil {
			return fmt.Errorf("raise %d: %w", c, err)
		}
	}
	return nil
}

var agentBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "arenero-agent")
	if err != nil {
		return "", err
	}
	built = dir
	file := filepath.Join(dir, "guest")
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "github.com/arenero/arenero/cmd/guest")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

type box struct {
	t    testing.TB
	cmd  *exec.Cmd
	wire string // folder of the FIFOs
	log  *os.File
}

func newBox(t testing.TB, args ...string) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes namespaces and changes users")
	}
	agent, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	b := &box{t: t, wire: dir}
	ends := map[string]*os.File{}
	for _, name := range []string{"in", "out"} {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if ends[name], err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	if b.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = append(os.Environ(), boxStage+"="+filepath.Join(dir, "root"), "ARENERO_TEST_AGENT="+agent,
		"ARENERO_TEST_ARGS=--meter=sum "+strings.Join(args, " "))
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = ends["in"], ends["out"], b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = ends["in"].Close()
	_ = ends["out"].Close()
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
		_ = b.log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(b.log.Name())
			t.Logf("the agent said:\n%s", text)
		}
	})
	return b
}

// dial opens the wire, as an engine's Dial does.
func (b *box) dial() net.Conn {
	b.t.Helper()
	r, err := os.OpenFile(filepath.Join(b.wire, "out"), os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	w, err := os.OpenFile(filepath.Join(b.wire, "in"), os.O_RDWR, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return &fifo{r, w}
}

func (b *box) guest() arenero.Guest {
	b.t.Helper()
	g := openGuest(b.t, b.dial())
	b.t.Cleanup(func() { _ = g.Close() })
	return g
}

// fifo is a pair of named pipes as a connection.
type fifo struct{ r, w *os.File }

func (f *fifo) Read(b []byte) (int, error)         { return f.r.Read(b) }
func (f *fifo) Write(b []byte) (int, error)        { return f.w.Write(b) }
func (f *fifo) Close() error                       { return errors.Join(f.r.Close(), f.w.Close()) }
func (f *fifo) LocalAddr() net.Addr                { return nil }
func (f *fifo) RemoteAddr() net.Addr               { return nil }
func (f *fifo) SetReadDeadline(t time.Time) error  { return f.r.SetReadDeadline(t) }
func (f *fifo) SetWriteDeadline(t time.Time) error { return f.w.SetWriteDeadline(t) }
func (f *fifo) SetDeadline(t time.Time) error {
	return errors.Join(f.SetReadDeadline(t), f.SetWriteDeadline(t))
}

func wakeUp(change ...func(*arenero.Wake)) arenero.Wake {
	w := arenero.Wake{
		SandboxID: "sbx-test", Hostname: "test-box", Now: time.Now(), Entropy: []byte(strings.Repeat("e", 32)),
		Env: map[string]string{"FROM_WAKE": "yes"}, Limits: arenero.DefaultLimits(),
		User: arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, Workdir: "/workspace",
	}
	w.Limits.Disk = 64 << 20
	for _, f := range change {
		f(&w)
	}
	return w
}

func awake(t testing.TB, change ...func(*arenero.Wake)) arenero.Guest {
	t.Helper()
	g := newBox(t).guest()
	if err := g.Wake(context.Background(), wakeUp(change...)); err != nil {
		t.Fatal(err)
	}
	return g
}
