package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

func TestMain(m *testing.M) {
	Dispatch() // this test binary is also the Sentry of its boxes
	os.Exit(m.Run())
}

func TestReexecutedIsDecidedByArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"runsc-sandbox", "--root=/x", "boot"}, true},
		{[]string{"runsc-gofer"}, true},
		{[]string{"runsc[getUsernsFD]"}, true},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}, true},
		{[]string{"/usr/local/bin/arenero", "run", "x.py"}, false},
		{[]string{"arenero", "runsc-sandbox"}, false},
		{nil, false},
	} {
		if got := reexecuted(c.args); got != c.want {
			t.Errorf("reexecuted(%q) = %v, want %v", c.args, got, c.want)
		}
	}
}

// A snapshot's key carries this version; it must be the one that is linked in.
func TestPinnedVersionIsTheOneInGoMod(t *testing.T) {
	raw, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), "gvisor.dev/gvisor "+pinned+"\n") {
		t.Errorf("go.mod does not require gvisor.dev/gvisor %s", pinned)
	}
}

func TestHierarchies(t *testing.T) {
	dir := t.TempDir()
	v2 := filepath.Join(dir, "unified")
	if err := os.MkdirAll(v2, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(v2, "cgroup.controllers"), []byte("pids hugetlb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := filepath.Join(dir, "mounts")
	text := "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n" +
		"cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n" +
		"cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n" +
		"cgroup2 " + v2 + " cgroup2 rw 0 0\nshort line\n"
	if err := os.WriteFile(mounts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := hierarchies(mounts)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]hierarchy{
		"cpu": {dir: "/sys/fs/cgroup/cpu,cpuacct"}, "cpuacct": {dir: "/sys/fs/cgroup/cpu,cpuacct"},
		"memory": {dir: "/sys/fs/cgroup/memory"}, "pids": {dir: v2, v2: true},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	dirs := newGroup("p", "b", got).dirs()
	if len(dirs) != 3 {
		t.Errorf("controllers that share a mount must share a directory: %v", dirs)
	}
}

// A limit whose controller is missing must fail, not be forgotten.
func TestLimitsAreNeverSilentlyWeaker(t *testing.T) {
	at, err := hierarchies("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	delete(at, "pids")
	g := newGroup("arenero-test-missing", "b", at)
	if err := g.create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.destroy(time.Now().Add(10 * time.Second)); err != nil {
			t.Error(err)
		}
	})
	if err := g.set(arenero.Limits{}.WithDefaults()); err == nil || !strings.Contains(err.Error(), "pids") {
		t.Errorf("set without the pids controller: %v", err)
	}
}

func TestGroupBoundsCountsAndKills(t *testing.T) {
	at, err := hierarchies("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup("arenero-test-group", "b", at)
	if err := g.create(); err != nil {
		t.Fatal(err)
	}
	l := arenero.Limits{Memory: 64 * arenero.MiB, Disk: 16 * arenero.MiB, CPUs: 0.5}.WithDefaults()
	if err := g.set(l); err != nil {
		t.Fatal(err)
	}
	// Twice, with other figures: an update must not stumble over the old ones.
	for _, memory := range []int64{256 * arenero.MiB, 64 * arenero.MiB} {
		l.Memory = memory
		l.CPUs *= 2
		if err := errors.Join(g.set(l), g.throttle(l)); err != nil {
			t.Fatal(err)
		}
	}
	l.CPUs = 0.5
	if err := g.throttle(l); err != nil {
		t.Error("less CPU than before:", err)
	}
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.add(child.Pid); err != nil {
		t.Fatal(err)
	}
	if got := g.procs(); len(got) != 1 || got[0] != child.Pid {
		t.Errorf("procs = %v, want [%d]", got, child.Pid)
	}
	if u := g.usage(); u.Tasks != 1 {
		t.Errorf("usage = %+v, want one task", u)
	}
	done := make(chan error, 1)
	go func() { _, err := child.Wait(); done <- err }()
	if err := g.destroy(time.Now().Add(10 * time.Second)); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if g.exists() {
		t.Error("the group is still there")
	}
	if _, err := os.Stat(filepath.Dir(g.dir("memory"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty parent is still there: %v", err)
	}
}

func TestStartTimeTellsAReusedPid(t *testing.T) {
	mine, err := startTime(os.Getpid())
	if err != nil || mine == 0 {
		t.Fatalf("startTime of this process: %d, %v", mine, err)
	}
	if _, err := startTime(1 << 30); err == nil {
		t.Error("a process that does not exist has a start time")
	}
}

func TestWireKeepsBytesWhileNobodyListens(t *testing.T) {
	dir := t.TempDir()
	guest, err := makeWire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.close()
	for round, text := range []string{"before", "after a daemon has gone"} {
		if _, err := guest.out.WriteString(text); err != nil {
			t.Fatal(err)
		}
		host, err := openWire(dir)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		n, err := host.Read(buf)
		if err != nil || string(buf[:n]) != text {
			t.Errorf("round %d: read %q, %v", round, buf[:n], err)
		}
		if err := host.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := host.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("round %d: a deadline must end a read: %v", round, err)
		}
		if err := errors.Join(host.Close(), host.Close()); err != nil {
			t.Error("close twice:", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, wireLog), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("the agent's standard error must be a FIFO, never a file: mode %o, %v", st.Mode, err)
	}
}

func TestRingKeepsTheTail(t *testing.T) {
	r := newRing(8)
	_, _ = r.ReadFrom(strings.NewReader("0123456789abcdef"))
	if got := r.tail(); got != "89abcdef" {
		t.Errorf("tail = %q", got)
	}
}

func TestRingKeepsTheCause(t *testing.T) {
	r := newRing(16 << 10)
	_, _ = r.ReadFrom(strings.NewReader("a log line\nfatal error: all asleep\n" + strings.Repeat("goroutine 1 [running]\n", 100)))
	if got := r.tail(); !strings.HasPrefix(got, "fatal error: all asleep\ngoroutine 1") || len(got) > 1024 {
		t.Errorf("tail = %q", got)
	}
}

// What a box said last is heard though it ended before anyone listened.
func TestRingDrainsThePipeOfAnEndedBox(t *testing.T) {
	dir := t.TempDir()
	guest, err := makeWire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.close()
	if _, err := guest.log.WriteString("panic: no more\n"); err != nil {
		t.Fatal(err)
	}
	r := newRing(1 << 10)
	r.drain(dir)
	if got := r.tail(); got != "panic: no more" {
		t.Errorf("tail = %q", got)
	}
	r.drain(dir) // nothing more: it must not wait
	if got := lastWords(dir); got != "" {
		t.Errorf("last words %q", got)
	}
}

// A second try at a start finds the pipes of the first.
func TestWireIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		guest, err := makeWire(dir)
		if err != nil {
			t.Fatal(err)
		}
		guest.close()
	}
}
