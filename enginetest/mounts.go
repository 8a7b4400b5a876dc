package enginetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// shared makes a folder of this machine that belongs to the sandbox's user.
func shared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (b bench) mounted(id string, mounts ...arenero.Mount) arenero.Box {
	b.t.Helper()
	caps, err := b.Probe(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if !caps.Mounts {
		b.t.Skip("this engine cannot mount folders")
	}
	box := b.box(id)
	box.Mounts = mounts
	return box
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, dir, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(raw))
}

// testMounts shows folders in each kind of place: where the image has nothing,
// below and instead of one that can be written.
func testMounts(t *testing.T, b bench) {
	rw, ro, whole := shared(t), shared(t), shared(t)
	put(t, ro, "given", "from outside")
	secret := t.TempDir()
	put(t, secret, "secret", "of the machine")
	box := b.mounted("mounts",
		arenero.Mount{Source: rw, Target: "/data/deep"},
		arenero.Mount{Source: ro, Target: "/workspace/in/ro", ReadOnly: true},
		arenero.Mount{Source: whole, Target: "/home/user"},
	)
	i := b.create(box)
	g := b.greet(i, box)
	b.sh(g, "echo one >/data/deep/file; mkdir /data/deep/dir; echo two >/home/user/file; echo '#!/bin/sh\necho ran' >/data/deep/run; chmod 755 /data/deep/run")
	if one, two := get(t, rw, "file"), get(t, whole, "file"); one != "one" || two != "two" {
		t.Errorf("outside there is %q and %q", one, two)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(rw, "dir"), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("what the user made belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	for script, want := range map[string]string{
		"cat /workspace/in/ro/given": "from outside",
		"echo x 2>&1 >/workspace/in/ro/new || echo no; echo x 2>&1 >>/workspace/in/ro/given || echo no; rm -f /workspace/in/ro/given 2>/dev/null || echo no": "no\nno\nno",
		"chmod 600 /workspace/in/ro/given 2>/dev/null || echo no": "no",
		"/data/deep/run": "ran",
		"stat -c %u /workspace/in; echo x >/workspace/in/new && cat /workspace/in/new": "1000\nx",
		// A link is followed inside, and the root of a mount is the end of it.
		"ln -s " + secret + "/secret /data/deep/link; cat /data/deep/link 2>/dev/null || echo no":              "no",
		"ln -s ../../../../../.." + secret + " /data/deep/up; cat /data/deep/up/secret 2>/dev/null || echo no": "no",
		"mknod /data/deep/dev b 1 3 2>/dev/null || echo no":                                                    "no",
		"mkdir /elsewhere 2>/dev/null || echo no; mkdir /data/elsewhere 2>/dev/null || echo no":                "no\nno",
	} {
		if got := b.sh(g, script); !sameLines(got, want) {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	// The other side's changes are seen.
	put(t, rw, "later", "after the start")
	if got := b.sh(g, "cat /data/deep/later"); got != "after the start" {
		t.Errorf("a file made outside: %q", got)
	}
	// A daemon that comes back destroys all of it.
	later, err := b.factory(t, b.dir).Open(t.Context(), "mounts")
	if err != nil {
		t.Fatal(err)
	}
	if err := later.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if get(t, rw, "file") != "one" {
		t.Error("files must outlive the box")
	}
}

// sameLines compares what a shell said, its complaints left out.
func sameLines(got, want string) bool {
	var said []string
	for line := range strings.Lines(got) {
		if !strings.Contains(line, "/bin/sh:") && !strings.HasPrefix(line, "sh:") {
			said = append(said, strings.TrimSpace(line))
		}
	}
	return strings.Join(said, "\n") == want
}

func testBadMounts(t *testing.T, b bench) {
	dir := shared(t)
	file := filepath.Join(dir, "file")
	put(t, dir, "file", "")
	for _, m := range []arenero.Mount{
		{Source: dir, Target: "data"}, {Source: dir, Target: "/a/../b"}, {Source: dir, Target: "/"},
		{Source: "relative", Target: "/data"}, {Source: filepath.Join(dir, "none"), Target: "/data"}, {Source: file, Target: "/data"},
	} {
		if _, err := b.Create(t.Context(), b.mounted("bad", m)); err == nil {
			t.Errorf("a box with %+v was made", m)
		}
	}
	if ids, err := b.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list %v, %v", ids, err)
	}
}

// testMountsSnapshot puts a box with mounts to sleep and restores it, with a file
// open and another one changed meanwhile.
func testMountsSnapshot(t *testing.T, b bench) {
	rw := shared(t)
	box := b.mounted("asleep", arenero.Mount{Source: rw, Target: "/workspace/data"})
	i := b.create(box)
	g := b.greet(i, box)
	b.sh(g, "echo before >/workspace/data/file; echo own >/workspace/own")
	p, err := g.Start(t.Context(), arenero.Command{
		Argv: []string{"/bin/sh", "-c", "exec 3>>/workspace/data/log; while read x; do echo line >&3; echo ok; done"}, Stdin: true, Detach: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	write := func(p arenero.Process) {
		t.Helper()
		if _, err := p.Write([]byte("\n")); err != nil {
			t.Fatal("write:", err)
		}
		if _, err := p.Next(); err != nil {
			t.Fatal("read:", err)
		}
	}
	write(p)
	g.Close()
	dir := b.snapshot(i, false)
	b.destroy(i)
	put(t, rw, "file", "changed meanwhile, and longer")
	put(t, rw, "new", "made meanwhile")
	box.Restore = dir
	again := b.create(box)
	g = b.greet(again, box)
	if got := b.sh(g, "cd /workspace; cat own data/file; echo; cat data/new"); got != "own\nchanged meanwhile, and longer\nmade meanwhile" {
		t.Errorf("after the restore: %q", got)
	}
	q, err := g.Attach(t.Context(), p.PID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Next(); err != nil {
		t.Fatal(err)
	}
	write(q)
	if got := get(t, rw, "log"); got != "line\nline" {
		t.Errorf("the open file: %q", got)
	}
	b.sh(g, "echo after >/workspace/data/after")
	if got := get(t, rw, "after"); got != "after" {
		t.Errorf("written after the restore: %q", got)
	}
}

// testMountsShared has two boxes at one folder.
func testMountsShared(t *testing.T, b bench) {
	rw := shared(t)
	var guests []arenero.Guest
	for n, id := range []string{"one", "two", "reader"} {
		box := b.mounted(id, arenero.Mount{Source: rw, Target: "/data", ReadOnly: n == 2})
		guests = append(guests, b.greet(b.create(box), box))
	}
	b.sh(guests[0], "echo from one >/data/file")
	if got := b.sh(guests[1], "cat /data/file; echo and two >>/data/file"); got != "from one" {
		t.Errorf("the second box sees %q", got)
	}
	for n, g := range guests {
		if got := b.sh(g, "cat /data/file"); got != "from one\nand two" {
			t.Errorf("box %d sees %q", n, got)
		}
	}
	b.sh(guests[0], "rm /data/file")
	if got := b.sh(guests[2], "ls /data"); got != "" {
		t.Errorf("after it was removed: %q", got)
	}
}
