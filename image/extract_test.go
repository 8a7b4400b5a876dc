package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// unpackInto lays archives one above the other in dir.
func unpackInto(t testing.TB, dir string, l Limits, layers ...[]byte) error {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := newExtractor(root, l)
	for _, data := range layers {
		if err := x.layer(t.Context(), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return nil
}

func TestHostileArchives(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "victim"), []byte("safe"), 0o600)
	out := func(name string) string { return filepath.Join(outside, name) }
	for name, tc := range map[string]struct {
		layers [][]byte
		want   arenero.Code // "" is: unpacks, harmlessly
	}{
		"dotdot":             {[][]byte{archive(t, file("../escape", "x"))}, arenero.Invalid},
		"dotdot inside":      {[][]byte{archive(t, file("a/../../escape", "x"))}, arenero.Invalid},
		"dotdot end":         {[][]byte{archive(t, entry(tar.TypeDir, "a/..", ""))}, arenero.Invalid},
		"absolute":           {[][]byte{archive(t, file(out("victim"), "x"))}, ""},
		"through link":       {[][]byte{archive(t, entry(tar.TypeSymlink, "l", outside), file("l/victim", "x"))}, ""},
		"through link below": {[][]byte{archive(t, entry(tar.TypeSymlink, "l", outside)), archive(t, file("l/victim", "x"))}, ""},
		"through two links":  {[][]byte{archive(t, entry(tar.TypeSymlink, "a", "b"), entry(tar.TypeSymlink, "b", outside), file("a/victim", "x"))}, ""},
		"over link":          {[][]byte{archive(t, entry(tar.TypeSymlink, "f", out("victim")), file("f", "x"))}, ""},
		"folder over link":   {[][]byte{archive(t, entry(tar.TypeSymlink, "d", outside), entry(tar.TypeDir, "d", "", mode(0o777)))}, ""},
		"hard link out":      {[][]byte{archive(t, entry(tar.TypeLink, "h", out("victim")), file("h", "x"))}, arenero.Invalid},
		"hard link dotdot":   {[][]byte{archive(t, entry(tar.TypeLink, "h", "../victim"))}, arenero.Invalid},
		"hard link by link":  {[][]byte{archive(t, entry(tar.TypeSymlink, "l", outside), entry(tar.TypeLink, "h", "l/victim"), file("h", "x"))}, arenero.Invalid},
		"hard link to link":  {[][]byte{archive(t, entry(tar.TypeSymlink, "l", out("victim")), entry(tar.TypeLink, "h", "l"), file("h", "x"))}, ""},
		"hard link to dir":   {[][]byte{archive(t, entry(tar.TypeDir, "d", ""), entry(tar.TypeLink, "h", "d"))}, arenero.Invalid},
		"hard link to self":  {[][]byte{archive(t, file("h", "x"), entry(tar.TypeLink, "h", "h"))}, ""},
		"whiteout link":      {[][]byte{archive(t, entry(tar.TypeSymlink, "l", outside)), archive(t, file("l/.wh.victim", ""))}, ""},
		"opaque link":        {[][]byte{archive(t, entry(tar.TypeSymlink, "l", outside)), archive(t, file("l/.wh..wh..opq", ""))}, ""},
		"whiteout dotdot":    {[][]byte{archive(t, file("a", "x")), archive(t, file(".wh...", ""), file(".wh..", ""))}, ""},
		"pax path":           {[][]byte{pax(t, "path=../escape", archive(t, file("ok", "x")))}, arenero.Invalid},
		"pax linkpath":       {[][]byte{pax(t, "linkpath=../victim", archive(t, entry(tar.TypeLink, "ok", "ok2")))}, arenero.Invalid},
		"long name":          {[][]byte{archive(t, file(strings.Repeat("n", 256), "x"))}, arenero.Invalid},
		"long path":          {[][]byte{archive(t, file(strings.Repeat("nn/", 2000)+"x", "x"))}, arenero.Invalid},
		"deep path":          {[][]byte{archive(t, file(strings.Repeat("n/", 200)+"x", "x"))}, ""},
		"too deep path":      {[][]byte{archive(t, file(strings.Repeat("n/", 300)+"x", "x"))}, arenero.Invalid},
		"negative owner":     {[][]byte{archive(t, file("f", "x", owner(-1, 0)))}, arenero.Invalid},
		"huge owner":         {[][]byte{archive(t, file("f", "x", owner(1<<40, 0)))}, arenero.Invalid},
		"many entries":       {[][]byte{archive(t, many(2000)...)}, arenero.TooLarge},
		"many bytes":         {[][]byte{archive(t, file("f", strings.Repeat("x", 2<<20)))}, arenero.TooLarge},
		"said to be huge":    {[][]byte{huge(t)}, arenero.TooLarge},
		"sparse bomb":        {[][]byte{sparse(t, 1<<40)}, arenero.TooLarge},
		"truncated":          {[][]byte{base(t)[:1100]}, arenero.Invalid},
		"garbage":            {[][]byte{bytes.Repeat([]byte("garbage!"), 1000)}, arenero.Invalid},
		"file over folder":   {[][]byte{archive(t, file("d/e/f", "x")), archive(t, file("d", "y"), file("d/e", "z"))}, ""},
		"root again":         {[][]byte{archive(t, entry(tar.TypeSymlink, ".", "/etc"), entry(tar.TypeDir, "/", ""), file("././.", "x"))}, ""},
		"newline":            {[][]byte{archive(t, file("a\nb\x1b[2J", "x"))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := unpackInto(t, dir, Limits{Bytes: 1 << 20, Entries: 1000}, tc.layers...)
			if arenero.CodeOf(err) != tc.want {
				t.Errorf("code %q, want %q: %v", arenero.CodeOf(err), tc.want, err)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Errorf("raw bytes in %q", err)
			}
			if b, err := os.ReadFile(out("victim")); err != nil || string(b) != "safe" {
				t.Errorf("victim holds %q: %v", b, err)
			}
			if all, _ := os.ReadDir(outside); len(all) != 1 {
				t.Errorf("outside: %v", all)
			}
			if info, _ := os.Stat(outside); info.Mode().Perm()&0o077 == 0o077 {
				t.Errorf("outside has mode %v", info.Mode())
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "escape")); err == nil {
				t.Error("escaped")
			}
			if all, _ := filepath.Glob(filepath.Join(dir, "*")); len(all) > 0 && name == "through link" {
				if b, err := os.ReadFile(filepath.Join(dir, "l/victim")); err != nil || string(b) != "x" {
					t.Errorf("l/victim holds %q: %v", b, err)
				}
			}
		})
	}
}

func many(n int) []func(*tar.Writer) error {
	var all []func(*tar.Writer) error
	for i := range n {
		all = append(all, file(fmt.Sprint(i), ""))
	}
	return all
}

// pax puts an extended header before an archive, as no writer would.
func pax(t testing.TB, record string, rest []byte) []byte {
	t.Helper()
	record = fmt.Sprintf(" %s\n", record)
	record = fmt.Sprint(len(record)+2) + record
	b := archive(t, file("header", record))[:1024]
	b[156] = 'x'
	sumHeader(b)
	return append(b, rest...)
}

// sumHeader puts the sum of a header that was edited right.
func sumHeader(b []byte) {
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// huge is a header that says more than there is.
func huge(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 50, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sparse is a file of the old GNU kind: all hole, of the given size. The writer
// of the standard library does not make them.
func sparse(t testing.TB, size int64) []byte {
	t.Helper()
	b := huge(t)[:512]
	copy(b[257:], "ustar  \x00") // GNU
	b[156] = 'S'
	octal := func(off int, n int64) { copy(b[off:], fmt.Sprintf("%011o\x00", n)) }
	octal(124, 0)    // bytes that follow
	octal(386, size) // one block of no bytes, at the end
	octal(398, 0)
	octal(483, size) // real size
	sumHeader(b)
	return append(b, make([]byte, 1024)...)
}

func TestAGzipBombIsStopped(t *testing.T) {
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(archive(t))
	zeros := make([]byte, 1<<20)
	for range 80 {
		_, _ = w.Write(zeros) // after the end of the archive
	}
	_ = w.Close()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := newExtractor(root, Limits{Bytes: 1 << 20})
	la := layer{open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(&z), nil }}
	err = unpackLayer(t.Context(), x, la, &counter{ctx: t.Context(), tell: func(int64) {}}, v1.Hash{})
	if arenero.CodeOf(err) != arenero.TooLarge {
		t.Errorf("code %s: %v", arenero.CodeOf(err), err)
	}
}

func TestWhiteoutsHideOnlyLowerLayers(t *testing.T) {
	for i, upper := range [][]byte{
		archive(t, file("d/new", "n"), file("d/.wh..wh..opq", ""), file("f", "2"), file(".wh.f", ""), file(".wh.gone", "")),
		archive(t, file(".wh.gone", ""), file(".wh.f", ""), file("f", "2"), file("d/.wh..wh..opq", ""), file("d/new", "n")),
	} {
		dir := t.TempDir()
		lower := archive(t, file("d/old", "o"), file("d/sub/old", "o"), file("f", "1"), file("gone/x", "1"), file("stay", "s"))
		if err := unpackInto(t, dir, Limits{}, lower, upper); err != nil {
			t.Fatal(err)
		}
		var got []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
			if !d.IsDir() {
				rel, _ := filepath.Rel(dir, path)
				b, _ := os.ReadFile(path)
				got = append(got, rel+"="+string(b))
			}
			return nil
		})
		if s := strings.Join(got, " "); s != "d/new=n f=2 stay=s" {
			t.Errorf("%d: %s", i, s)
		}
	}
}

// FuzzExtract gives any bytes to the extractor: nothing may appear outside of
// its folder, nothing may be more than a file, a folder or a link, and what
// unpacked can be made an image of.
func FuzzExtract(f *testing.F) {
	f.Add(base(f), archive(f, file("app/.wh.old", ""), file("data/.wh..wh..opq", "")))
	f.Add(archive(f, entry(tar.TypeSymlink, "l", "/tmp"), file("l/x", "x")), archive(f, entry(tar.TypeLink, "a", "l/x")))
	f.Add(sparse(f, 100), huge(f))
	f.Add(archive(f, file("a/../../b", "x")), []byte("x"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "in")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		err := unpackInto(t, dir, Limits{Bytes: 1 << 20, Entries: 200}, a, b)
		if all, _ := os.ReadDir(parent); len(all) != 1 {
			t.Fatalf("outside: %v", all)
		}
		werr := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
			default:
				t.Fatalf("%q is %o", path, st.Mode)
			}
			if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				t.Fatalf("%q is %o", path, st.Mode)
			}
			return nil
		})
		if werr != nil {
			t.Fatal(werr)
		}
		if err != nil {
			return
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		tr := &tree{path: dir}
		if err := tr.finish(root); err != nil && arenero.CodeOf(err) != arenero.Invalid {
			t.Fatal(err)
		}
		top, err := readTree(t.Context(), root, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		img, err := layOut(top)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := img.write(t.Context(), filepath.Join(parent, "x"), nil); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzConfig gives any bytes as the config of an image.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"os":"linux","architecture":"amd64","config":{"User":"a:b","Env":["A=b"],"WorkingDir":"../x","Cmd":["x"]},"rootfs":{"type":"layers","diff_ids":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := parseConfig(&source{config: data}, "")
		if err != nil {
			if arenero.CodeOf(err) != arenero.Invalid {
				t.Fatal(err)
			}
			return
		}
		for k, v := range configEnv(cfg.Config.Env) {
			if !envRE.MatchString(k) || strings.ContainsRune(v, 0) {
				t.Fatalf("%q=%q", k, v)
			}
		}
		if d := configDir(cfg.Config.WorkingDir); d != "" && !cleanAbs(d) {
			t.Fatalf("workdir %q", d)
		}
	})
}
