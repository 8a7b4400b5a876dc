package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

func TestBoxBeforeWake(t *testing.T) {
	b := newBox(t)
	g := b.guest()
	_, err := g.Start(t.Context(), sh("true"))
	wantCode(t, err, arenero.Conflict)
	for _, w := range []arenero.Wake{
		wakeUp(func(w *arenero.Wake) { w.Entropy = nil }),
		wakeUp(func(w *arenero.Wake) { w.User.UID = agentID }),
		wakeUp(func(w *arenero.Wake) { w.User.Home = "relative" }),
		wakeUp(func(w *arenero.Wake) { w.Workdir = "relative" }),
		wakeUp(func(w *arenero.Wake) { w.Limits.Disk = 0 }),
		wakeUp(func(w *arenero.Wake) { w.Env = map[string]string{"A=B": ""} }),
	} {
		wantCode(t, g.Wake(t.Context(), w), arenero.Invalid)
	}
	if err := g.Wake(t.Context(), wakeUp()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, g.Wake(t.Context(), wakeUp(func(w *arenero.Wake) { w.Warm = true })), arenero.Conflict)
	again := wakeUp(func(w *arenero.Wake) { w.Env = map[string]string{"FROM_WAKE": "again"}; w.Limits.Disk = 1 << 30 })
	if err := g.Wake(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if r := run(t, g, sh("echo $FROM_WAKE; df -k --output=size /workspace | tail -1 | tr -d ' '")); r.out != "again\n65536\n" {
		t.Fatalf("%+v", r)
	}
}

// What user code is, and what it cannot do, inside.
func TestBoxConfines(t *testing.T) {
	g := awake(t)
	for _, tc := range []struct{ name, script, out string }{
		{"user", "id -u; id -g; id -G | cut -d' ' -f-2", "1000\n1000\n1000 77\n"},
		{"environment", "echo $FROM_IMAGE $FROM_WAKE $HOME $USER; pwd", "yes yes /home/user user\n/workspace\n"},
		{"host name", "hostname", "test-box\n"},
		{"capabilities", "grep ^Cap /proc/self/status | cut -f2 | sort -u", "0000000000000000\n"},
		{"seccomp", "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | cut -f2", "1\n2\n"},
		{"user namespace", "unshare -U true 2>&1 | grep -o 'Operation not permitted'", "Operation not permitted\n"},
		{"clone3", `python3 -c "
import ctypes,os
l=ctypes.CDLL(None,use_errno=True)
print(l.syscall(435,0,0), ctypes.get_errno())
print(l.syscall(56,0x10000000|17,0,0,0,0), ctypes.get_errno())
print(l.syscall(308,0,0), ctypes.get_errno())
print(l.syscall(0x40000000|39), ctypes.get_errno())
"`, "-1 38\n-1 1\n-1 1\n-1 38\n"},
		{"threads", `python3 -c "
import threading
t=[threading.Thread(target=print,args=('t',)) for i in range(5)]
[x.start() for x in t];[x.join() for x in t]"`, "t\nt\nt\nt\nt\n"},
		{"root is read-only", "touch /x /etc/x 2>&1 | grep -c 'Read-only'; touch /usr/x 2>&1 | grep -c 'denied'", "2\n1\n"},
		{"agent's memory", "cat /proc/1/environ /proc/1/mem 2>&1 | grep -c 'Permission denied'; ls /proc/1/fd 2>&1 | grep -c 'Permission denied'", "2\n1\n"},
		{"agent's signals", "kill -9 1 2>&1 | grep -c 'ermitted'; kill -STOP 1 2>&1 | grep -c 'ermitted'", "1\n1\n"},
		{"mount", "mount -t tmpfs x /tmp 2>&1 | grep -ci 'permission denied\\|permitted\\|superuser'", "1\n"},
		{"places", "for d in /workspace /home/user /tmp /var/tmp /dev/shm; do echo x > $d/f && cat $d/f; done", "x\nx\nx\nx\nx\n"},
		{"what the image had", "cat ~/.profile /workspace/readme; readlink link; echo y >> readme; tail -1 readme", "# from the image\nfrom the image\n/etc/passwd\ny\n"},
		{"modes", "stat -c '%a %U' /tmp /var/tmp /home/user /workspace /run", "1777 agent\n1777 agent\n755 user\n755 user\n755 agent\n"},
		{"no set-uid on the disk", "cp /bin/su /tmp/su 2>/dev/null; findmnt -no OPTIONS /tmp | grep -c nosuid", "1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if r := run(t, g, sh(tc.script)); r.out != tc.out {
				t.Fatalf("%+v", r)
			}
		})
	}
	t.Run("the agent itself", func(t *testing.T) {
		c := sh("grep -E '^Cap(Prm|Eff|Bnd|Inh|Amb)' /proc/1/status")
		r := run(t, g, c)
		var left uint64
		for _, c := range granted[:6] {
			left |= 1 << c
		}
		left |= 1 << unix.CAP_SYS_PTRACE
		want := fmt.Sprintf("CapInh:\t%016x\nCapPrm:\t%016x\nCapEff:\t%016x\nCapBnd:\t%016x\nCapAmb:\t%016x\n",
			0, left|1<<unix.CAP_SYS_ADMIN, left, 0, 0)
		if r.out != want {
			t.Fatalf("%s\nwant\n%s", r.out, want)
		}
	})
	t.Run("other users", func(t *testing.T) {
		c := sh("id -u; grep ^CapEff /proc/self/status | cut -f2")
		for name, uid := range map[string]string{"root": "0", "other": "1001", "1234": "1234"} {
			c.User = name
			if r := run(t, g, c); r.out != uid+"\n0000000000000000\n" {
				t.Fatalf("%+v", r)
			}
		}
		c.User = "agent"
		_, err := g.Start(t.Context(), c)
		wantCode(t, err, arenero.Denied)
	})
}

func TestBoxLimits(t *testing.T) {
	g := awake(t, func(w *arenero.Wake) {
		w.Limits.Disk, w.Limits.Processes, w.Limits.OpenFiles, w.Limits.Memory = 16<<20, 60, 100, 200<<20
	})
	alive := func(t *testing.T) {
		t.Helper()
		if r := run(t, g, sh("rm -rf /tmp/* /workspace/big; echo alive")); r.out != "alive\n" {
			t.Fatalf("%+v", r)
		}
	}
	t.Run("disk", func(t *testing.T) {
		r := run(t, g, sh("dd if=/dev/zero of=/workspace/big bs=64k count=100000"))
		if r.exit.Reason != arenero.DiskFull || r.exit.Code == 0 {
			t.Fatalf("%+v", r)
		}
		r = run(t, g, sh("head -c 9999 /dev/zero > /dev/shm/more; head -c 9999 /dev/zero > ~/more"))
		if !strings.Contains(r.err, "No space left") {
			t.Fatalf("one disk is behind all places: %+v", r)
		}
		_, err := g.WriteFile(t.Context(), "", "/tmp/f", 0o644, strings.NewReader(strings.Repeat("x", 100_000)))
		wantCode(t, err, arenero.Exhausted)
		alive(t)
	})
	t.Run("inodes", func(t *testing.T) {
		r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", "for i in range(10**6): open('/tmp/%d'%i,'w').close()"}})
		if r.exit.Reason != arenero.DiskFull {
			t.Fatalf("%+v", r)
		}
		alive(t)
	})
	t.Run("processes", func(t *testing.T) {
		r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", "import os,time\nwhile 1:\n  if os.fork()==0: time.sleep(100); os._exit(0)"}})
		if r.exit.Reason != arenero.ProcessLimit {
			t.Fatalf("%+v", r)
		}
		r = run(t, g, arenero.Command{Argv: []string{"python3", "-c", "import threading,time\nwhile 1: threading.Thread(target=time.sleep,args=(100,),daemon=True).start()"}})
		if r.exit.Reason != arenero.ProcessLimit {
			t.Fatalf("%+v", r)
		}
		alive(t)
	})
	t.Run("open files", func(t *testing.T) {
		r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", "l=[]\nwhile 1: l.append(open('/etc/passwd'))"}})
		if !strings.Contains(r.err, "Too many open files") || r.exit.Code != 1 {
			t.Fatalf("%+v", r)
		}
		alive(t)
	})
	t.Run("memory", func(t *testing.T) {
		r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", "import time\nl=[]\nwhile 1: l.append(b'x'*5000000); time.sleep(0.005)"}})
		if r.exit.Reason != arenero.OutOfMemory {
			t.Fatalf("%+v", r)
		}
		alive(t)
	})
}

// The orphans of everybody are waited for.
func TestBoxReaps(t *testing.T) {
	g := awake(t)
	c := sh("for i in 1 2 3 4 5 6 7 8 9 10; do setsid sh -c 'true' & done; sleep 0.3; ps -eo stat= | grep -c Z; true")
	if r := run(t, g, c); r.out != "0\n" {
		t.Fatalf("%+v", r)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 25 {
				p, err := g.Start(t.Context(), sh(fmt.Sprintf("exit %d", i)))
				if err != nil {
					t.Error(err)
					return
				}
				for {
					e, err := p.Next()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil || e.Exit != nil && e.Exit.Code != i {
						t.Error(e, err)
						break
					}
				}
				_ = p.Close()
			}
		})
	}
	wg.Wait()
}

// A sandbox outlives the daemon: the next one takes up the wire, and what was
// detached has gone on.
func TestBoxOutlivesItsHost(t *testing.T) {
	b := newBox(t)
	wire := b.dial()
	first := openGuest(t, wire)
	t.Cleanup(func() { _ = first.Close() })
	if err := first.Wake(t.Context(), wakeUp()); err != nil {
		t.Fatal(err)
	}
	p, err := first.Start(t.Context(), arenero.Command{Argv: []string{"sh", "-c", "while :; do head -c 100000 /dev/zero; done"}})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := first.Start(t.Context(), arenero.Command{Argv: []string{"sleep", "1000"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Next(); err != nil {
		t.Fatal(err)
	}
	// It goes without a word, as one that is killed, with the pipe full.
	_ = wire.Close()
	second := b.guest()
	eventually(t, "the end of what was not detached", func() bool {
		list, err := second.ListProcesses(t.Context())
		return err == nil && len(list) == 1 && list[0].PID == kept.PID()
	})
	if r := run(t, second, sh("echo hello")); r.out != "hello\n" {
		t.Fatalf("%+v", r)
	}
}

// A warm box gets a disk of its own at its claim, with what was on the old one,
// and what runs in it its limits.
func TestBoxClaim(t *testing.T) {
	g := newBox(t).guest()
	warm := wakeUp(func(w *arenero.Wake) { w.Warm = true; w.Limits.Disk = 32 << 20; w.Limits.OpenFiles = 500 })
	if err := g.Wake(t.Context(), warm); err != nil {
		t.Fatal(err)
	}
	_, err := g.Start(t.Context(), sh("true"))
	wantCode(t, err, arenero.Conflict)
	if _, err := g.WriteFile(t.Context(), "", "/home/user/.cache/warm", 0o600, strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	if err := g.Wake(t.Context(), wakeUp(func(w *arenero.Wake) { w.Limits.Disk = 100 << 20 })); err != nil {
		t.Fatal(err)
	}
	r := run(t, g, sh("cat ~/.cache/warm; stat -c '%a %U' ~/.cache/warm; df -k --output=size ~ | tail -1 | tr -d ' '; grep -c disk/ /proc/self/mountinfo; echo x > ~/new; cat ~/new; cat /workspace/readme"))
	if r.out != "kept600 user\n102400\n0\nx\nfrom the image\n" {
		t.Fatalf("%+v", r)
	}
}
