package image

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountImage has the kernel mount an image: the one reader that takes nothing on
// trust. The mount ends with the test.
func mountImage(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	loop := loopDevice(t, file)
	if err := unix.Mount(loop, dir, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Fatalf("mount %s: %v", file, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// loopDevice attaches a file to a loop device that lets go of it by itself.
func loopDevice(t *testing.T, file string) string {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	back, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	for range 20 { // another process may take the one that was free
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		cfg := &unix.LoopConfig{Fd: uint32(back.Fd())}
		cfg.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), cfg)
		if err == nil {
			// Closed after the mount holds it.
			t.Cleanup(func() { _ = dev.Close() })
			return name
		}
		_ = dev.Close()
	}
	t.Fatal("no free loop device")
	return ""
}

// imageOf writes the folder as an image, without finishing it.
func imageOf(t *testing.T, dir string) (file, digest string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	top, err := readTree(t.Context(), root, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	img, err := layOut(top)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "x.erofs")
	digest, err = img.write(t.Context(), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != img.size() {
		t.Fatalf("size %v, want %d: %v", info.Size(), img.size(), err)
	}
	return file, digest
}

func write(t *testing.T, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// hardTree makes a folder with everything that is difficult.
func hardTree(t *testing.T, dir string) {
	t.Helper()
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000, 3 << 20} {
		write(t, filepath.Join(dir, fmt.Sprintf("size/%d", size)), bytes.Repeat([]byte{byte(size), 7}, size)[:size], 0o644)
	}
	for i := range 10_000 {
		write(t, filepath.Join(dir, fmt.Sprintf("many/file-%05d%s", i, strings.Repeat("x", i%200))), nil, 0o644)
	}
	for _, name := range []string{"+plus", "-minus", "...", ".a", " ", "ü\xff\n", strings.Repeat("n", 255), "zz"} {
		write(t, filepath.Join(dir, "names", name), []byte(name), 0o640)
	}
	for i := range 300 { // sizes of folders around one block and one inode's room
		write(t, filepath.Join(dir, fmt.Sprintf("dirs/%d/%s", i, strings.Repeat("y", 1+i%250))), nil, 0o644)
		for j := range i {
			write(t, filepath.Join(dir, fmt.Sprintf("dirs/%d/%d", i, j)), nil, 0o600)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		must(os.Symlink(strings.Repeat("t", 1+i*20), filepath.Join(dir, fmt.Sprintf("link-%d", i))))
	}
	must(os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	must(os.Link(filepath.Join(dir, "size/4097"), filepath.Join(dir, "hard")))
	must(os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	must(os.Chmod(filepath.Join(dir, "empty"), 0o777|fs.ModeSticky))
	write(t, filepath.Join(dir, "suid"), []byte("x"), 0o755|fs.ModeSetuid|fs.ModeSetgid)
	must(unix.Lchown(filepath.Join(dir, "suid"), 70_000, 70_001))
	must(os.Chmod(filepath.Join(dir, "suid"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	must(unix.Setxattr(filepath.Join(dir, "hard"), "user.note", []byte("x"), 0))
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
}

func TestErofsHoldsWhatTheTreeHolds(t *testing.T) {
	src := t.TempDir()
	hardTree(t, src)
	file, digest := imageOf(t, src)
	dir := mountImage(t, file)

	count := 0
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		count++
		rel, _ := filepath.Rel(src, path)
		got := filepath.Join(dir, rel)
		var a, b unix.Stat_t
		if err := unix.Lstat(path, &a); err != nil {
			return err
		}
		err = unix.Lstat(got, &b)
		if d.Type()&(fs.ModeDevice|fs.ModeNamedPipe) != 0 {
			if err == nil {
				t.Errorf("%q passed into the image", rel)
			}
			return nil
		}
		if err != nil {
			t.Errorf("%q: %v", rel, err)
			return nil
		}
		a.Mode &^= unix.S_ISUID | unix.S_ISGID
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || !d.IsDir() && (a.Size != b.Size || a.Nlink != b.Nlink) {
			t.Errorf("%q: %o %d:%d %d bytes, %d links; want %o %d:%d %d bytes, %d links", rel,
				b.Mode, b.Uid, b.Gid, b.Size, b.Nlink, a.Mode, a.Uid, a.Gid, a.Size, a.Nlink)
		}
		switch {
		case d.Type().IsRegular():
			x, err1 := os.ReadFile(path)
			y, err2 := os.ReadFile(got)
			if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
				t.Errorf("%q: bytes differ (%v, %v)", rel, err1, err2)
			}
		case d.Type() == fs.ModeSymlink:
			x, _ := os.Readlink(path)
			if y, err := os.Readlink(got); err != nil || x != y {
				t.Errorf("%q links to %.20q: %v", rel, y, err)
			}
		case d.IsDir():
			x, _ := os.ReadDir(path)
			y, err := os.ReadDir(got)
			if err != nil || rel != "." && len(x) != len(y) {
				t.Errorf("%q has %d entries, want %d: %v", rel, len(y), len(x), err)
			}
		}
		return nil
	})
	if err != nil || count < 50_000 {
		t.Fatalf("walked %d: %v", count, err)
	}
	var hard, first unix.Stat_t
	_ = unix.Lstat(filepath.Join(dir, "hard"), &hard)
	_ = unix.Lstat(filepath.Join(dir, "size/4097"), &first)
	if hard.Ino != first.Ino || hard.Ino == 0 {
		t.Errorf("hard link: inodes %d and %d", hard.Ino, first.Ino)
	}
	if n, err := unix.Listxattr(filepath.Join(dir, "hard"), nil); err == nil && n > 0 {
		t.Error("an attribute passed into the image")
	}
	if _, again := imageOf(t, src); again != digest {
		t.Errorf("the same tree gave %s and %s", digest, again)
	}
}

func TestErofsNoticesAChangingFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), make([]byte, 5000), 0o644)
	for _, size := range []int64{4000, 6000} {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		top, err := readTree(t.Context(), root, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		img, err := layOut(top)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, "a"), size); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "x")
		if _, err := img.write(t.Context(), file, nil); err == nil {
			t.Errorf("size %d went unnoticed", size)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("a half written image stays")
		}
		if err := os.Truncate(filepath.Join(dir, "a"), 5000); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAgent(t *testing.T) {
	dir := t.TempDir()
	binary := bytes.Repeat([]byte("guest"), 12345)
	path, digest, err := Agent(dir, binary)
	if err != nil {
		t.Fatal(err)
	}
	again, digest2, err := Agent(dir, binary)
	if err != nil || again != path || digest != digest2 {
		t.Fatalf("again: %s %s %v", again, digest2, err)
	}
	if other, _, err := Agent(dir, binary[1:]); err != nil || other == path {
		t.Fatalf("another binary: %s %v", other, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	mnt := mountImage(t, path)
	got, err := os.ReadFile(filepath.Join(mnt, "guest"))
	if err != nil || !bytes.Equal(got, binary) {
		t.Fatalf("guest differs: %v", err)
	}
	if info, _ := os.Stat(filepath.Join(mnt, "guest")); info.Mode() != 0o755 {
		t.Errorf("mode %v", info.Mode())
	}
}

func BenchmarkErofs(b *testing.B) {
	root, err := os.OpenRoot("/usr/lib/python3")
	if err != nil {
		b.Skip(err)
	}
	defer root.Close()
	for b.Loop() {
		top, err := readTree(context.Background(), root, time.Now())
		if err != nil {
			b.Fatal(err)
		}
		img, err := layOut(top)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(img.size())
		if _, err := img.write(context.Background(), filepath.Join(b.TempDir(), "x"), nil); err != nil {
			b.Fatal(err)
		}
	}
}
