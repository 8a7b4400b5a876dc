package enginetest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/dial"
)

// Factory makes an engine that keeps its boxes in dir. Two engines made with the
// same dir stand for two lives of a daemon.
type Factory func(t testing.TB, dir string) arenero.Engine

// Run runs every check that an engine must pass. rootfs is an image with a shell
// and the usual small programs.
func Run(t *testing.T, rootfs string, engine Factory) {
	for _, c := range []struct {
		name string
		test func(*testing.T, bench)
	}{
		{"a box lives and nothing is left", testLife},
		{"the same id twice is a conflict", testTwice},
		{"bad ids are refused", testBadIDs},
		{"a box that cannot start leaves nothing", testFailedCreate},
		{"any number may wait and destroy", testWaitDestroy},
		{"a new daemon takes up a running box", testReopen},
		{"a later dial takes the wire", testRedial},
		{"a cut in mid-stream does not wedge the wire", testCut},
		{"pause stops and resume goes on", testPause},
		{"a snapshot is restored many times", testSnapshot},
		{"a snapshot that ends the box", testSnapshotEnds},
		{"a broken snapshot is refused", testBrokenSnapshot},
		{"the memory limit is the backstop", testMemory},
		{"the guest sees its own size", testVisible},
		{"boxes are made side by side", testParallel},
		{"mounts are seen where they are wanted", testMounts},
		{"bad mounts are refused", testBadMounts},
		{"mounts come back after a snapshot", testMountsSnapshot},
		{"a folder is shared by boxes", testMountsShared},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			CheckLeaks(t)
			dir := t.TempDir()
			c.test(t, bench{t: t, dir: dir, rootfs: rootfs, factory: engine, Engine: engine(t, dir)})
		})
	}
}

type bench struct {
	arenero.Engine

	t           *testing.T
	dir, rootfs string
	factory     Factory
}

func (b bench) box(id string) arenero.Box {
	return arenero.Box{
		ID: id, RootFS: b.rootfs, Hostname: id,
		Limits: arenero.Limits{Memory: 256 * arenero.MiB, Disk: 64 * arenero.MiB}.WithDefaults(),
	}
}

func (b bench) create(box arenero.Box) arenero.Instance {
	b.t.Helper()
	i, err := b.Create(b.t.Context(), box)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.destroy(i) })
	return i
}

func (b bench) destroy(i arenero.Instance) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := i.Destroy(ctx); err != nil {
		b.t.Errorf("destroy: %v", err)
	}
}

// greet opens the wire and gives the box its identity.
func (b bench) greet(i arenero.Instance, box arenero.Box) arenero.Guest {
	b.t.Helper()
	g := b.reach(i)
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy)
	err := g.Wake(b.t.Context(), arenero.Wake{
		SandboxID: box.ID, Hostname: box.Hostname, Now: time.Now(), Entropy: entropy, Limits: box.Limits,
		User: arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, Workdir: "/workspace",
	})
	if err != nil {
		b.t.Fatal("wake:", err)
	}
	return g
}

func (b bench) reach(i arenero.Instance) arenero.Guest {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	conn, err := i.Dial(ctx)
	if err != nil {
		b.t.Fatal("dial:", err)
	}
	g, err := dial.Open(ctx, conn)
	if err != nil {
		conn.Close()
		b.t.Fatal("open wire:", err)
	}
	b.t.Cleanup(func() { g.Close() })
	if _, err := g.Hello(ctx); err != nil {
		b.t.Fatal("hello:", err)
	}
	return g
}

func (b bench) sh(g arenero.Guest, script string) string {
	b.t.Helper()
	out, err := Output(b.t.Context(), g, "/bin/sh", "-c", script)
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(out)
}

// Output runs a command to its end and returns what it wrote to both streams.
func Output(ctx context.Context, g arenero.Guest, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := g.Start(ctx, arenero.Command{Argv: argv})
	if err != nil {
		return "", err
	}
	defer p.Close()
	return Drain(p)
}

// Drain reads a process to its end.
func Drain(p arenero.Process) (string, error) {
	var out strings.Builder
	for {
		ev, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out.String(), nil
		}
		if err != nil {
			return out.String(), err
		}
		out.Write(ev.Stdout)
		out.Write(ev.Stderr)
	}
}

func wantCode(t *testing.T, what string, err error, code arenero.Code) {
	t.Helper()
	if arenero.CodeOf(err) != code {
		t.Errorf("%s: code %q (%v), want %q", what, arenero.CodeOf(err), err, code)
	}
}

func testLife(t *testing.T, b bench) {
	box := b.box("life")
	i := b.create(box)
	g := b.greet(i, box)
	if got := b.sh(g, "echo hello; id -u"); got != "hello\n1000" {
		t.Errorf("output %q", got)
	}
	if got := b.sh(g, "hostname"); got != "life" {
		t.Errorf("hostname %q", got)
	}
	u, err := i.Usage(t.Context())
	if err != nil || u.Memory == 0 || u.Tasks == 0 || u.CPU == 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	ids, err := b.List(t.Context())
	if err != nil || len(ids) != 1 || ids[0] != "life" {
		t.Errorf("list %v, %v", ids, err)
	}
	b.destroy(i)
	if ids, err := b.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list after destroy %v, %v", ids, err)
	}
	_, err = b.Open(t.Context(), "life")
	wantCode(t, "open after destroy", err, arenero.NotFound)
}

func testTwice(t *testing.T, b bench) {
	b.create(b.box("twice"))
	_, err := b.Create(t.Context(), b.box("twice"))
	wantCode(t, "second create", err, arenero.Conflict)
}

func testBadIDs(t *testing.T, b bench) {
	for _, id := range []string{"", "..", "a/b", "A", "-a", "a_b", strings.Repeat("a", 65), "a\x00", "ü"} {
		_, err := b.Create(t.Context(), b.box(id))
		wantCode(t, "create "+id, err, arenero.Invalid)
		_, err = b.Open(t.Context(), id)
		wantCode(t, "open "+id, err, arenero.NotFound)
	}
}

func testFailedCreate(t *testing.T, b bench) {
	box := b.box("fails")
	box.RootFS = filepath.Join(t.TempDir(), "no-such-image")
	if _, err := b.Create(t.Context(), box); err == nil {
		t.Error("a box without an image was made")
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not an image ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	box.RootFS = garbage
	if _, err := b.Create(t.Context(), box); err == nil {
		t.Error("a box of garbage was made")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Create(ctx, b.box("fails"))
	wantCode(t, "create with a cancelled context", err, arenero.Canceled)
	if ids, err := b.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list %v, %v", ids, err)
	}
	b.create(b.box("fails")) // and the id is free
}

func testWaitDestroy(t *testing.T, b bench) {
	i := b.create(b.box("wait"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := i.Wait(ctx)
	wantCode(t, "wait on a running box", err, arenero.Canceled)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			x, err := i.Wait(context.Background())
			if err != nil || !x.Destroyed || x.OutOfMemory {
				t.Errorf("wait: %+v, %v", x, err)
			}
		})
		wg.Go(func() { b.destroy(i) })
	}
	wg.Wait()
	b.destroy(i)
	_, err = i.Dial(t.Context())
	wantCode(t, "dial after destroy", err, arenero.Conflict)
}

func testReopen(t *testing.T, b bench) {
	box := b.box("reopen")
	i := b.create(box)
	g := b.greet(i, box)
	p, err := g.Start(t.Context(), arenero.Command{
		Argv: []string{"/bin/sh", "-c", "while :; do sleep 0.05; echo tick; done"}, Detach: true, Tag: "ticker",
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := p.PID()
	g.Close()

	later := b.factory(t, b.dir)
	j, err := later.Open(t.Context(), "reopen")
	if err != nil {
		t.Fatal(err)
	}
	again := b.reach(j)
	q, err := again.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal("attach:", err)
	}
	for range 2 {
		if ev, err := q.Next(); err != nil || !strings.Contains(string(ev.Stdout), "tick") {
			t.Fatalf("the process did not go on: %+v, %v", ev, err)
		}
	}
	if err := j.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, err := i.Wait(t.Context())
	if err != nil || x.OutOfMemory {
		t.Errorf("the first engine's view: %+v, %v", x, err)
	}
}

func testRedial(t *testing.T, b bench) {
	box := b.box("redial")
	i := b.create(box)
	first := b.greet(i, box)
	second := b.reach(i)
	if got := b.sh(second, "echo two"); got != "two" {
		t.Errorf("output %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := first.Hello(ctx); err == nil {
		t.Error("the connection that was superseded still answers")
	}
}

func testCut(t *testing.T, b bench) {
	box := b.box("cut")
	i := b.create(box)
	b.greet(i, box).Close()
	for range 5 {
		conn, err := i.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		g, err := dial.Open(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh", "-c", "cat /dev/zero"}})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := p.Next(); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close() // without a word, as a daemon that is killed
		g.Close()
	}
	if got := b.sh(b.reach(i), "echo alive"); got != "alive" {
		t.Errorf("output %q", got)
	}
}

func testPause(t *testing.T, b bench) {
	box := b.box("pause")
	i := b.create(box)
	pauser, ok := i.(arenero.Pauser)
	if !ok {
		t.Skip("this engine cannot pause")
	}
	g := b.greet(i, box)
	b.sh(g, "(while :; do echo x >>/tmp/ticks; sleep 0.02; done) >/dev/null 2>&1 &")
	if err := pauser.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	u1, _ := i.Usage(t.Context())
	time.Sleep(300 * time.Millisecond)
	u2, _ := i.Usage(t.Context())
	if spent := u2.CPU - u1.CPU; spent > 50*time.Millisecond {
		t.Errorf("a paused box used %v of CPU", spent)
	}
	if err := pauser.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.sh(g, "echo on"); got != "on" {
		t.Errorf("output %q", got)
	}
}

func (b bench) snapshot(i arenero.Instance, keep bool) string {
	b.t.Helper()
	s, ok := i.(arenero.Snapshotter)
	if !ok {
		b.t.Skip("this engine cannot make snapshots")
	}
	dir := b.t.TempDir()
	if err := s.Snapshot(b.t.Context(), dir, keep); err != nil {
		b.t.Fatal("snapshot:", err)
	}
	return dir
}

func testSnapshot(t *testing.T, b bench) {
	box := b.box("original")
	i := b.create(box)
	g := b.greet(i, box)
	b.sh(g, "echo kept >/workspace/file")
	p, err := g.Start(t.Context(), arenero.Command{
		Argv: []string{"/bin/sh", "-c", "n=0; while read x; do n=$((n+1)); echo $n; done"}, Stdin: true, Detach: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	next := func(p arenero.Process) string {
		t.Helper()
		if _, err := p.Write([]byte("\n")); err != nil {
			t.Fatal("write:", err)
		}
		ev, err := p.Next()
		if err != nil {
			t.Fatal("read:", err)
		}
		return strings.TrimSpace(string(ev.Stdout))
	}
	if got := next(p); got != "1" {
		t.Fatalf("counter %q", got)
	}
	g.Close()
	dir := b.snapshot(i, true)
	if got := b.sh(b.reach(i), "cat /workspace/file"); got != "kept" {
		t.Errorf("the original after its snapshot: %q", got)
	}
	seen := map[string]bool{}
	for _, id := range []string{"copy-1", "copy-2", "copy-3"} {
		box := b.box(id)
		box.Restore = dir
		j := b.create(box)
		g := b.greet(j, box)
		if got := b.sh(g, "cat /workspace/file; hostname"); got != "kept\n"+id {
			t.Errorf("%s: %q", id, got)
		}
		q, err := g.Attach(t.Context(), p.PID())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Next(); err != nil { // what was kept of its output
			t.Fatal(err)
		}
		if got := next(q); got != "2" {
			t.Errorf("%s: the counter went on to %q, want 2", id, got)
		}
		random := b.sh(g, "head -c 16 /dev/urandom | od -An -tx1")
		if seen[random] {
			t.Errorf("%s: the same random bytes as another copy", id)
		}
		seen[random] = true
	}
}

func testSnapshotEnds(t *testing.T, b bench) {
	box := b.box("ends")
	i := b.create(box)
	g := b.greet(i, box)
	b.sh(g, "echo kept >/workspace/file")
	g.Close()
	dir := b.snapshot(i, false)
	if _, err := i.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	b.destroy(i)
	box.Restore = dir
	if got := b.sh(b.greet(b.create(box), box), "cat /workspace/file"); got != "kept" {
		t.Errorf("after restore under the same id: %q", got)
	}
}

func testBrokenSnapshot(t *testing.T, b bench) {
	box := b.box("whole")
	i := b.create(box)
	b.greet(i, box).Close()
	dir := b.snapshot(i, true)
	b.destroy(i)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("the snapshot has no files:", err)
	}
	truncated := t.TempDir()
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(truncated, filepath.Base(f)), raw[:len(raw)/2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, broken := range map[string]string{"empty": t.TempDir(), "truncated": truncated} {
		box := b.box("broken")
		box.Restore = broken
		_, err := b.Create(t.Context(), box)
		wantCode(t, name, err, arenero.Invalid)
	}
	if ids, err := b.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list %v, %v", ids, err)
	}
}

func testMemory(t *testing.T, b bench) {
	box := b.box("bomb")
	box.Limits.Memory, box.Limits.Disk = arenero.MinMemory, arenero.MinDisk
	i := b.create(box)
	neighbour := b.box("neighbour")
	n := b.greet(b.create(neighbour), neighbour)
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g, err := dial.Open(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	// The agent is told of more memory than the box has, so that it does not act.
	box.Limits.Memory = 4 * arenero.GiB
	entropy := make([]byte, 32)
	if err := g.Wake(t.Context(), arenero.Wake{
		SandboxID: box.ID, Hostname: box.ID, Now: time.Now(), Entropy: entropy, Limits: box.Limits,
		User: arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, Workdir: "/workspace",
	}); err != nil {
		t.Fatal(err)
	}
	if p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh", "-c", "dd if=/dev/zero of=/dev/null bs=600M count=4"}}); err == nil {
		defer p.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x, err := i.Wait(ctx)
	if err != nil || !x.OutOfMemory || !strings.Contains(x.Reason, "memory") {
		t.Errorf("exit %+v, %v", x, err)
	}
	if got := b.sh(n, "echo unharmed"); got != "unharmed" {
		t.Errorf("the neighbour: %q", got)
	}
}

func testVisible(t *testing.T, b bench) {
	box := b.box("visible")
	g := b.greet(b.create(box), box)
	total := b.sh(g, "awk '/MemTotal/ {print $2}' /proc/meminfo")
	want := (box.Limits.Memory + box.Limits.Disk) / arenero.KiB
	if got := atoi(total); got != want {
		t.Errorf("MemTotal %d kB, want %d", got, want)
	}
	if got := b.sh(g, "cat /proc/loadavg"); !strings.HasPrefix(got, "0.00 0.00 0.00") {
		t.Errorf("the guest sees the host's load: %q", got)
	}
	if got := b.sh(g, "awk -F: 'NR>2 {print $1}' /proc/net/dev"); got != "lo" {
		t.Errorf("network interfaces %q, want only lo", got)
	}
}

func testParallel(t *testing.T, b bench) {
	var wg sync.WaitGroup
	for _, id := range []string{"p-1", "p-2", "p-3", "p-4", "p-5", "p-6"} {
		wg.Go(func() {
			box := b.box(id)
			i, err := b.Create(t.Context(), box)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.destroy(i)
			conn, err := i.Dial(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			g, err := dial.Open(t.Context(), conn)
			if err != nil {
				conn.Close()
				t.Error(err)
				return
			}
			defer g.Close()
			if _, err := g.Hello(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func atoi(s string) int64 {
	var n int64
	for _, c := range strings.TrimSpace(s) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}
