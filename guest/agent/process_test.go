package agent_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent"
)

func TestProcess(t *testing.T) {
	g := native(t)
	for _, tc := range []struct {
		name, script, out, err string
		code                   int
		signal                 string
		reason                 arenero.ExitReason
	}{
		{"both streams", "echo out; echo err >&2", "out\n", "err\n", 0, "", arenero.Exited},
		{"status", "exit 7", "", "", 7, "", arenero.Exited},
		{"signal", "kill -SEGV $$", "", "", 128 + 11, "SIGSEGV", arenero.WasKilled},
		{"no input", "cat", "", "", 0, "", arenero.Exited},
		{"streams open again", "echo x > /dev/stdout; echo y > /dev/stderr", "x\n", "y\n", 0, "", arenero.Exited},
		{"session of its own", "ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo yes", "yes\n", "", 0, "", arenero.Exited},
		{"no more descriptors", "ls /proc/self/fd | wc -l", "4\n", "", 0, "", arenero.Exited},
		// Without 32 and 33, which are libc's and may be ignored by who runs the tests.
		{"signals as they should be", "for m in $(grep -E 'SigIgn|SigBlk' /proc/self/status | cut -f2); do echo $((0x$m & ~0x180000000)); done", "0\n0\n", "", 0, "", arenero.Exited},
		{"no privileges to gain", "grep NoNewPrivs /proc/self/status | cut -f2", "1\n", "", 0, "", arenero.Exited},
		{"no core files", "ulimit -Hc", "0\n", "", 0, "", arenero.Exited},
		{"limited files", "ulimit -Hn", "1024\n", "", 0, "", arenero.Exited},
		{"limited processes", "ulimit -u 2>/dev/null || bash -c 'ulimit -Hu'", "4096\n", "", 0, "", arenero.Exited},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, g, sh(tc.script))
			want := arenero.ProcessExit{Code: tc.code, Signal: tc.signal, Reason: tc.reason, Duration: r.exit.Duration}
			if r.out != tc.out || r.err != tc.err || r.exit != want {
				t.Fatalf("%+v", r)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	g := native(t)
	dir := t.TempDir()
	noExec := filepath.Join(dir, "data")
	junk := filepath.Join(dir, "junk")
	for path, mode := range map[string]os.FileMode{noExec: 0o644, junk: 0o755} {
		if err := os.WriteFile(path, []byte("\x01\x02\x03"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []arenero.Command{
		{},
		{Argv: []string{""}},
		{Argv: []string{"no-such-program"}},
		{Argv: []string{"/no/such/program"}},
		{Argv: []string{"/tmp"}},
		{Argv: []string{noExec}},
		{Argv: []string{junk}},
		{Argv: []string{"true"}, Dir: "/no/such/dir"},
		{Argv: []string{"true", "a\x00b"}},
		{Argv: []string{"true"}, Env: map[string]string{"A=B": "c"}},
		{Argv: []string{"true"}, Env: map[string]string{"": "c"}},
	} {
		_, err := g.Start(t.Context(), c)
		wantCode(t, err, arenero.Invalid)
	}
	_, err := g.Start(t.Context(), arenero.Command{Argv: []string{"true"}, User: "nobody-at-all"})
	wantCode(t, err, arenero.NotFound)
	_, err = g.Attach(t.Context(), 1<<29)
	wantCode(t, err, arenero.NotFound)
	wantCode(t, g.Signal(t.Context(), 1<<29, "SIGTERM", true), arenero.NotFound)
	if r := run(t, g, sh("echo alive")); r.out != "alive\n" {
		t.Fatal(r)
	}
}

func TestEnvironment(t *testing.T) {
	g := native(t, func(c *agent.Config) { c.Env = append(c.Env, "A=image", "B=image") })
	err := g.Wake(t.Context(), arenero.Wake{Entropy: make([]byte, 32), Env: map[string]string{"B": "sandbox", "C": "sandbox"}, Limits: arenero.DefaultLimits()})
	if err != nil {
		t.Fatal(err)
	}
	c := sh("echo $A $B $C $D $HOME; pwd")
	c.Env = map[string]string{"C": "command", "D": "$(id) ü"}
	c.Dir = "/usr"
	r := run(t, g, c)
	want := "image sandbox command $(id) ü "
	if !strings.HasPrefix(r.out, want) || !strings.HasSuffix(r.out, "\n/usr\n") {
		t.Fatalf("%q", r.out)
	}
	c.Env = map[string]string{"PATH": "/nowhere"}
	c.Argv = []string{"true"}
	_, err = g.Start(t.Context(), c)
	wantCode(t, err, arenero.Invalid)
}

func TestStdin(t *testing.T) {
	g := native(t)
	p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"sha1sum"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Write(bytes.Repeat([]byte("abc"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if r := follow(t, p); !strings.HasPrefix(r.out, "e8bf78c0f3ca85c23f52e1de3fb0a8ff4ed6e5ac") && len(r.out) < 40 {
		t.Fatal(r)
	}
	// A program that does not read its input ends all the same.
	p, err = g.Start(t.Context(), arenero.Command{Argv: []string{"sleep", "0.2"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	go func() { _, _ = p.Write(make([]byte, 8<<20)) }()
	if r := follow(t, p); r.exit.Code != 0 {
		t.Fatal(r)
	}
}

func TestTerminal(t *testing.T) {
	g := native(t)
	p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh"}, PTY: &arenero.Window{Cols: 91, Rows: 33}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out string
	expect := func(s string) {
		t.Helper()
		for !strings.Contains(out, s) {
			e, err := p.Next()
			if err != nil || e.Exit != nil {
				t.Fatalf("%v %+v, no %q in %q", err, e.Exit, s, out)
			}
			out += string(e.Stdout)
		}
		_, out, _ = strings.Cut(out, s) // one piece may hold more than one answer
	}
	say := func(s string) {
		t.Helper()
		if _, err := p.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	say("stty size; test -t 0 && echo a-'tty'\n")
	expect("33 91")
	expect("a-tty")
	if err := p.Resize(arenero.Window{Cols: 50, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	say("stty size\n")
	expect("20 50")
	say("echo star'ted'; sleep 100\n")
	expect("started")
	say("\x03") // ^C ends the sleep, not the shell
	say("echo go'ing' on\n")
	expect("going on")
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if r := follow(t, p); r.exit.Signal != "" {
		t.Fatalf("%+v", r)
	}
}

// daemon leaves a process behind that has done everything to be forgotten: a
// session of its own, no parent, no environment, no streams. It prints its pid.
const daemon = `setsid env -i sh -c 'setsid sh -c "trap \"\" TERM HUP INT; echo \$\$ > %s; while :; do sleep 0.05; done" </dev/null >/dev/null 2>&1 &' </dev/null >/dev/null 2>&1 &
`

func pidIn(t *testing.T, file string) (pid int) {
	t.Helper()
	eventually(t, "pid in "+file, func() bool {
		b, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0
	})
	return pid
}

func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

func writable(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Nothing of a program that is not detached survives it: not a timeout, not its
// caller's leaving, not its own end.
func TestTreesEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: descent is marked by a group")
	}
	g := native(t)
	t.Run("timeout", func(t *testing.T) {
		file := writable(t) + "/pid"
		c := sh(fmt.Sprintf(daemon, file) + "trap '' TERM; echo before; while :; do sleep 0.1; done")
		c.Timeout = time.Second
		r := run(t, g, c)
		if r.out != "before\n" || r.exit.Reason != arenero.TimedOut || r.exit.Duration > 10*time.Second {
			t.Fatalf("%+v", r)
		}
		pid := pidIn(t, file)
		eventually(t, "the daemon's end", func() bool { return gone(pid) })
	})
	t.Run("caller leaves", func(t *testing.T) {
		file := writable(t) + "/pid"
		p, err := g.Start(t.Context(), sh(fmt.Sprintf(daemon, file)+"sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		pid := pidIn(t, file)
		_ = p.Close()
		eventually(t, "both ends", func() bool { return gone(pid) && gone(p.PID()) })
	})
	t.Run("own end", func(t *testing.T) {
		file := writable(t) + "/pid"
		r := run(t, g, sh(fmt.Sprintf(daemon, file)+"while ! test -s "+file+"; do sleep 0.05; done; echo done"))
		if r.out != "done\n" || r.exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		pid := pidIn(t, file)
		eventually(t, "the daemon's end", func() bool { return gone(pid) })
	})
	t.Run("who holds the output", func(t *testing.T) {
		r := run(t, g, sh("sleep 1000 & echo done"))
		if r.out != "done\n" || r.exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("late writers are heard", func(t *testing.T) {
		r := run(t, g, arenero.Command{Argv: []string{"bash", "-c", "echo x > >(sleep 0.1; tr x y)"}})
		if r.out != "y\n" {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("fork bomb", func(t *testing.T) {
		c := arenero.Command{Argv: []string{"python3", "-c", "import os,time\nwhile 1:\n try: os.fork()\n except OSError: time.sleep(0.01)"}}
		c.Timeout = time.Second
		g := native(t, func(c *agent.Config) { c.Limits.Processes, c.Limits.Memory = 150, 16*arenero.GiB; c.User.UID = 54322 })
		r := run(t, g, c)
		if r.exit.Reason != arenero.TimedOut {
			t.Fatalf("%+v", r.exit)
		}
		if r := run(t, g, sh("echo alive")); r.out != "alive\n" {
			t.Fatalf("%+v", r)
		}
	})
}

func TestDetachAttach(t *testing.T) {
	g := native(t)
	dir := writable(t)
	c := sh("echo early; while ! test -e " + dir + "/go; do sleep 0.02; done; echo late; exit 3")
	c.Detach, c.Tag = true, "my tag"
	p, err := g.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	pid := p.PID()
	_ = p.Close()
	list, err := g.ListProcesses(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(i arenero.ProcessInfo) bool {
		return i.PID == pid && i.Tag == "my tag" && i.Argv[0] == "/bin/sh"
	}) {
		t.Fatal(list, err)
	}
	first, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	second, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close() // an attached one that leaves changes nothing
	third, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	late, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []arenero.Process{first, third, late} {
		if r := follow(t, p); r.out != "early\nlate\n" || r.exit.Code != 3 || r.dropped != 0 {
			t.Fatalf("%+v", r)
		}
		_ = p.Close()
	}
	ended, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	if r := follow(t, ended); r.out != "early\nlate\n" || r.exit.Code != 3 {
		t.Fatalf("%+v", r)
	}
	_ = ended.Close()
	wantCode(t, g.Signal(t.Context(), pid, "SIGTERM", false), arenero.Conflict)
}

func TestKeptOutput(t *testing.T) {
	g := native(t)
	c := sh("head -c 3000000 /dev/zero | tr '\\0' a; echo tail; echo err >&2")
	c.Detach, c.OutputKeep = true, 100_000
	p, err := g.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	eventually(t, "the end", func() bool {
		list, err := g.ListProcesses(t.Context())
		return err == nil && len(list) == 0
	})
	p, err = g.Attach(t.Context(), p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := follow(t, p)
	if len(r.out) < 100_000 || len(r.out) > 300_000 || !strings.HasSuffix(r.out, "tail\n") || r.err != "err\n" ||
		r.dropped+int64(len(r.out)) != 3_000_005 {
		t.Fatalf("%d %d %q %q", len(r.out), r.dropped, r.err, r.out[max(0, len(r.out)-20):])
	}
}

func TestSignal(t *testing.T) {
	g := native(t)
	p, err := g.Start(t.Context(), sh("trap 'echo usr; exit 5' USR1; echo up; while :; do sleep 0.02; done"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if e, err := p.Next(); err != nil || string(e.Stdout) != "up\n" {
		t.Fatal(e, err)
	}
	wantCode(t, g.Signal(t.Context(), p.PID(), "SIGNOTHING", false), arenero.Invalid)
	if err := g.Signal(t.Context(), p.PID(), "SIGUSR1", false); err != nil {
		t.Fatal(err)
	}
	if r := follow(t, p); r.out != "usr\n" || r.exit.Code != 5 || r.exit.Reason != arenero.Exited {
		t.Fatalf("%+v", r)
	}
	p, err = g.Start(t.Context(), sh("sleep 1000 & sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := g.Signal(t.Context(), p.PID(), "SIGKILL", true); err != nil {
		t.Fatal(err)
	}
	if r := follow(t, p); r.exit.Signal != "SIGKILL" || r.exit.Code != 137 || r.exit.Reason != arenero.Cancelled {
		t.Fatalf("%+v", r.exit)
	}
}

// A reader that stands still makes the process wait; nothing is lost and nobody
// grows.
func TestBackpressure(t *testing.T) {
	g := native(t)
	p, err := g.Start(t.Context(), sh("head -c 64000000 /dev/zero"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.Sleep(300 * time.Millisecond)
	if gone(p.PID()) {
		t.Fatal("64 MB went somewhere while nobody read")
	}
	if r := follow(t, p); len(r.out) != 64_000_000 || r.exit.Code != 0 {
		t.Fatal(len(r.out), r.exit)
	}
}

func TestMemoryGuard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	g := native(t, func(c *agent.Config) { c.Limits.Memory = 150 << 20 })
	small, err := g.Start(t.Context(), arenero.Command{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	bomb := "import time\nl=[]\nwhile 1: l.append(b'x'*5000000); time.sleep(0.005)"
	r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", bomb}})
	if r.exit.Reason != arenero.OutOfMemory || r.exit.Signal != "SIGKILL" {
		t.Fatalf("%+v", r.exit)
	}
	c := sh("python3 -c \"$B\"; exit $?")
	c.Env = map[string]string{"B": bomb}
	if r := run(t, g, c); r.exit.Reason != arenero.OutOfMemory || r.exit.Code != 137 {
		t.Fatalf("a child's death: %+v", r.exit)
	}
	if gone(small.PID()) {
		t.Fatal("the small one was ended too")
	}
}

func TestProcessLimit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	g := native(t, func(c *agent.Config) { c.Limits.Processes = 40; c.User.UID = 54323 })
	r := run(t, g, arenero.Command{Argv: []string{"python3", "-c", "import os,time\nwhile 1:\n  if os.fork()==0: time.sleep(100); os._exit(0)"}})
	if r.exit.Reason != arenero.ProcessLimit || r.exit.Code != 1 {
		t.Fatalf("%+v", r)
	}
	if r := run(t, g, sh("echo alive")); r.out != "alive\n" {
		t.Fatalf("%+v", r)
	}
}

func TestNothingOfUsOpen(t *testing.T) {
	// Descriptors of the agent itself are not inherited, whatever opened them.
	var rl unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &rl); err != nil {
		t.Fatal(err)
	}
	g := native(t)
	for range 20 {
		if r := run(t, g, sh("ls -l /proc/self/fd | grep -c -e socket -e eventpoll; true")); r.out != "0\n" {
			t.Fatal(r)
		}
	}
}
