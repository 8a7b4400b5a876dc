package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent"
)

func write(t testing.TB, g arenero.Guest, name, text string) arenero.FileInfo {
	t.Helper()
	info, err := g.WriteFile(t.Context(), "", name, 0, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func read(t testing.TB, g arenero.Guest, name string, offset, size int64) string {
	t.Helper()
	r, _, err := g.ReadFile(t.Context(), "", name, offset, size)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFilesRoundTrip(t *testing.T) {
	g, dir := native(t), writable(t)
	name := dir + "/a/b/c.txt" // parents are made
	info := write(t, g, name, "hello")
	if info.Path != name || info.Name != "c.txt" || info.Size != 5 || info.Mode.Perm() != 0o644 {
		t.Fatalf("%+v", info)
	}
	for _, tc := range []struct {
		offset, size int64
		want         string
	}{{0, -1, "hello"}, {1, 3, "ell"}, {3, 100, "lo"}, {5, -1, ""}, {100, 5, ""}, {0, 0, ""}} {
		if got := read(t, g, name, tc.offset, tc.size); got != tc.want {
			t.Errorf("%d %d: %q", tc.offset, tc.size, got)
		}
	}
	if _, _, err := g.ReadFile(t.Context(), "", name, -1, 5); arenero.CodeOf(err) != arenero.Invalid {
		t.Error(err)
	}
	big := make([]byte, 5<<20+17)
	_, _ = rand.NewChaCha8([32]byte{}).Read(big)
	if _, err := g.WriteFile(t.Context(), "", name, 0o600, bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	if read(t, g, name, 0, -1) != string(big) {
		t.Error("bytes differ")
	}
	if st, err := g.Stat(t.Context(), "", name); err != nil || st.Size != int64(len(big)) || st.Mode != 0o600 {
		t.Error(st, err)
	}
	write(t, g, name, "") // mode 0 leaves the one there is
	if st, err := g.Stat(t.Context(), "", name); err != nil || st.Size != 0 || st.Mode != 0o600 {
		t.Error(st, err)
	}
	if err := g.Chmod(t.Context(), "", name, 0o640); err != nil {
		t.Error(err)
	}
	if err := g.Move(t.Context(), "", name, dir+"/new/d"); err != nil {
		t.Error(err)
	}
	if err := g.MakeDir(t.Context(), "", dir+"/made/deep", 0o700); err != nil {
		t.Error(err)
	}
	if err := g.Remove(t.Context(), "", dir+"/a"); err != nil {
		t.Error(err)
	}
	if _, err := g.Stat(t.Context(), "", name); arenero.CodeOf(err) != arenero.NotFound {
		t.Error(err)
	}
	if st, err := g.Stat(t.Context(), "", dir+"/new/d"); err != nil || st.Mode != 0o640 {
		t.Error(st, err)
	}
	// What the kernel makes up as it is read has no size beforehand.
	if got := read(t, g, "/proc/version", 0, -1); !strings.HasPrefix(got, "Linux") {
		t.Errorf("%q", got)
	}
}

// Another file system takes a copy; what it was stays.
func TestMoveAcross(t *testing.T) {
	g, from := native(t), writable(t)
	to, err := os.MkdirTemp("/dev/shm", "arn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(to) })
	if err := os.Chmod(to, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, g, from+"/tree/x", "x")
	write(t, g, from+"/tree/sub/y", "y")
	if err := g.Move(t.Context(), "", from+"/tree", to+"/moved"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, g, to+"/moved/sub/y", 0, -1); got != "y" {
		t.Errorf("%q", got)
	}
	if err := g.Move(t.Context(), "", to+"/moved/x", from+"/x"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, g, from+"/x", 0, -1); got != "x" {
		t.Errorf("%q", got)
	}
	for dir, want := range map[string]int{from: 1, to: 1} {
		if list, err := os.ReadDir(dir); err != nil || len(list) != want {
			t.Errorf("%s holds %v", dir, list)
		}
	}
}

// Nothing half written is seen, and nothing is left of what was given up.
func TestWriteIsAtomic(t *testing.T) {
	g, dir := native(t), writable(t)
	name := dir + "/f"
	write(t, g, name, "old")
	sick := io.MultiReader(strings.NewReader(strings.Repeat("new", 200_000)), iotest.ErrReader(errors.New("gone")))
	if _, err := g.WriteFile(t.Context(), "", name, 0, sick); err == nil {
		t.Fatal("a broken source gave a file")
	}
	ctx, cancel := context.WithCancel(t.Context())
	slow := io.MultiReader(strings.NewReader(strings.Repeat("new", 200_000)), readerFunc(func([]byte) (int, error) {
		if got := read(t, g, name, 0, -1); got != "old" {
			t.Errorf("half written: %.20q", got)
		}
		cancel()
		time.Sleep(10 * time.Millisecond)
		return 1, nil
	}))
	if _, err := g.WriteFile(ctx, "", name, 0, slow); err == nil {
		t.Fatal("a cancelled write gave a file")
	}
	eventually(t, "one file", func() bool {
		list, err := os.ReadDir(dir)
		return err == nil && len(list) == 1
	})
	if got := read(t, g, name, 0, -1); got != "old" {
		t.Fatalf("%.20q", got)
	}
	// Through a link the file changes and the link stays.
	if err := os.Symlink("f", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	write(t, g, dir+"/link", "through")
	if st, err := g.Stat(t.Context(), "", dir+"/link"); err != nil || st.Link != "f" || st.Mode&fs.ModeSymlink == 0 {
		t.Fatal(st, err)
	}
	if got := read(t, g, name, 0, -1); got != "through" {
		t.Fatalf("%q", got)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// What would block, act or never end is refused at once.
func TestSpecialFiles(t *testing.T) {
	g, dir := native(t), writable(t)
	if err := unix.Mkfifo(dir+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/socket"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir + "/fifo", dir + "/socket", dir, "/dev/zero", "/dev/tty", dir + "/loop"} {
		_, _, err := g.ReadFile(t.Context(), "", name, 0, -1)
		wantCode(t, err, arenero.Invalid)
		_, err = g.WriteFile(t.Context(), "", name, 0o644, strings.NewReader("x"))
		wantCode(t, err, arenero.Invalid)
	}
	for _, name := range []string{"", "a\x00b", strings.Repeat("x", 5000), strings.Repeat("x", 300)} {
		_, err := g.Stat(t.Context(), "", name)
		wantCode(t, err, arenero.Invalid)
	}
	wantCode(t, g.Remove(t.Context(), "", dir+"/none"), arenero.NotFound)
	wantCode(t, g.Move(t.Context(), "", dir+"/none", dir+"/x"), arenero.NotFound)
	_, err = g.ReadDir(t.Context(), "", dir+"/fifo", 1)
	wantCode(t, err, arenero.Invalid)
}

// Names are bytes: the one that was listed is the one to ask for.
func TestStrangeNames(t *testing.T) {
	g, dir := native(t), writable(t)
	for _, name := range []string{"\xff\xfe", "new\nline", "ü", " ", "-rf", "$(id)", "\x1b[2J"} {
		write(t, g, filepath.Join(dir, name), name)
	}
	list, err := g.ReadDir(t.Context(), "", dir, 1)
	if err != nil || len(list) != 7 {
		t.Fatal(list, err)
	}
	for _, e := range list {
		if got := read(t, g, e.Path, 0, -1); got != e.Name {
			t.Errorf("%q holds %q", e.Path, got)
		}
	}
}

func TestReadDirDepth(t *testing.T) {
	g, dir := native(t), writable(t)
	for _, name := range []string{"a", "d/b", "d/e/c", "d/e/f/g"} {
		write(t, g, dir+"/"+name, name)
	}
	if err := os.Symlink("..", dir+"/d/up"); err != nil { // is told of, and not followed
		t.Fatal(err)
	}
	for depth, want := range map[int]string{0: "a d", 1: "a d", 2: "a d d/b d/e d/up", 9: "a d d/b d/e d/e/c d/e/f d/e/f/g d/up"} {
		list, err := g.ReadDir(t.Context(), "", dir, depth)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range list {
			names = append(names, strings.TrimPrefix(e.Path, dir+"/"))
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("depth %d: %q", depth, got)
		}
	}
}

// A path leads no further than the user may go, whatever the agent may.
func TestFilesAsTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it changes users")
	}
	g, dir := native(t), writable(t)
	secret := dir + "/secret"
	if err := os.WriteFile(secret, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/closed/in", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, dir+"/way"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{secret, dir + "/way", "/proc/1/environ"} {
		_, _, err := g.ReadFile(t.Context(), "", name, 0, -1)
		wantCode(t, err, arenero.Denied)
	}
	ctx := t.Context()
	_, err := g.WriteFile(ctx, "", dir+"/new", 0, strings.NewReader(""))
	wantCode(t, err, arenero.Denied)
	_, err = g.WriteFile(ctx, "", dir+"/way", 0, strings.NewReader(""))
	wantCode(t, err, arenero.Denied)
	_, err = g.ReadDir(ctx, "", dir+"/closed", 1)
	wantCode(t, err, arenero.Denied)
	_, err = g.Watch(ctx, "", dir+"/closed", false)
	wantCode(t, err, arenero.Denied)
	for _, err := range []error{
		g.Remove(ctx, "", secret), g.Move(ctx, "", secret, dir+"/x"), g.Chmod(ctx, "", secret, 0o777),
		g.MakeDir(ctx, "", dir+"/d", 0o777), g.MakeDir(ctx, "", "/etc/arenero-test", 0o777),
	} {
		wantCode(t, err, arenero.Denied)
	}
	// A folder below that is closed does not spoil the listing of the rest.
	if list, err := g.ReadDir(ctx, "", dir, 5); err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	// Rights are those of the user that is named, groups included, and come back.
	if got := read(t, g, "/proc/self/status", 0, -1); got == "" {
		t.Fatal("nothing")
	}
	if r, _, err := g.ReadFile(ctx, "root", secret, 0, -1); err != nil {
		t.Fatal(err)
	} else {
		_ = r.Close()
	}
	_, _, err = g.ReadFile(ctx, "", secret, 0, -1)
	wantCode(t, err, arenero.Denied)
}

func TestWatch(t *testing.T) {
	g, dir := native(t), writable(t)
	write(t, g, dir+"/sub/old", "x")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := g.Watch(ctx, "", dir, true)
	if err != nil {
		t.Fatal(err)
	}
	wait := func(name, op string) {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			select {
			case e, ok := <-events:
				if !ok {
					t.Fatal("the watch ended")
				}
				if e.Path == name && e.Op == op {
					return
				}
			case <-late:
				t.Fatalf("no %s of %s", op, name)
			}
		}
	}
	if err := os.WriteFile(dir+"/sub/old", []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	wait(dir+"/sub/old", "write")
	if err := os.MkdirAll(dir+"/new/deep", 0o777); err != nil {
		t.Fatal(err)
	}
	wait(dir+"/new/deep", "create")
	if err := os.WriteFile(dir+"/new/deep/f", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wait(dir+"/new/deep/f", "create")
	if err := os.Rename(dir+"/new/deep/f", dir+"/g"); err != nil {
		t.Fatal(err)
	}
	wait(dir+"/g", "create")
	if err := os.Remove(dir + "/g"); err != nil {
		t.Fatal(err)
	}
	wait(dir+"/g", "remove")
	cancel()
	for range events { // closes
	}
	_, err = g.Watch(t.Context(), "", dir+"/none", true)
	wantCode(t, err, arenero.NotFound)
	_, err = g.Watch(t.Context(), "", dir+"/sub/old", true)
	wantCode(t, err, arenero.Invalid)
}

// A reader that stands still loses events and is told how many.
func TestWatchIsBounded(t *testing.T) {
	g, dir := native(t), writable(t)
	events, err := g.Watch(t.Context(), "", dir, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 60_000 {
		if err := os.WriteFile(dir+"/f", nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, lost := 0, 0
	for end := time.After(30 * time.Second); lost == 0; {
		select {
		case e := <-events:
			got++
			lost += e.Dropped
			// One more change, so that something follows what was lost.
			_ = os.WriteFile(dir+"/g", nil, 0o644)
		case <-end:
			t.Fatalf("%d events and no word of a loss", got)
		}
	}
}

// A file of any size streams through both sides, in and out and in ranges, in
// memory that does not grow with it.
func TestFilesStream(t *testing.T) {
	g, dir := native(t, func(c *agent.Config) { c.Limits.Disk = 0 }), writable(t)
	const size = 64 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	peak, looks := before.HeapInuse, 0
	watch := readerFunc(func(p []byte) (int, error) { // looks while the bytes go by
		if looks++; looks%16 == 0 {
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapInuse)
		}
		return len(p), nil
	})
	info, err := g.WriteFile(t.Context(), "", dir+"/big", 0, io.LimitReader(watch, size))
	if err != nil || info.Size != size {
		t.Fatal(info, err)
	}
	for _, part := range [][2]int64{{0, size}, {size - 10, 10}, {size / 2, size / 4}} {
		r, _, err := g.ReadFile(t.Context(), "", dir+"/big", part[0], part[1])
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, io.TeeReader(r, writerFunc(func(p []byte) (int, error) { return watch(p) })))
		if err != nil || n != part[1] {
			t.Errorf("%v: %d, %v", part, n, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if grown := int64(peak) - int64(before.HeapInuse); grown > 48<<20 {
		t.Errorf("%d MiB held", grown>>20)
	} else {
		t.Logf("at most %d MiB held", grown>>20)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
