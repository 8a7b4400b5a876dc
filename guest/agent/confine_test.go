package agent_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

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
