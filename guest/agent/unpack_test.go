package agent

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arenero/arenero/guest/wire"
)

// FuzzUnpack unpacks what a stranger sends: nothing outside of the folder changes,
// nothing gets rights, and what is in the folder can be packed again.
func FuzzUnpack(f *testing.F) {
	for _, list := range [][]tar.Header{
		{{Name: "a", Typeflag: tar.TypeReg, Mode: 0o6777}},
		{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o500}, {Name: "d/e/f", Typeflag: tar.TypeReg}},
		{{Name: "../outside/x", Typeflag: tar.TypeReg}},
		{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/x", Typeflag: tar.TypeReg}},
		{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/victim"}, {Name: "h", Typeflag: tar.TypeReg}},
		{{Name: "a", Typeflag: tar.TypeReg}, {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}, {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}},
		{{Name: "n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		{{Name: strings.Repeat("p/", 120) + "x", Typeflag: tar.TypeReg, Format: tar.FormatPAX}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range list {
			if h.Typeflag == tar.TypeReg {
				h.Size = 3
			}
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("abc")) // to memory
			}
		}
		_ = w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		victim := dir + "/outside/victim"
		for _, err := range []error{os.Mkdir(dir+"/outside", 0o755), os.Mkdir(dir+"/in", 0o755), os.WriteFile(victim, []byte("safe"), 0o600)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.OpenRoot(dir + "/in")
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		own := &tree{a: &Agent{}, op: "unpack", name: "in", root: root, buf: make([]byte, wire.MaxData)}
		info, err := own.unpack(bytes.NewReader(raw))
		if info.Bytes > int64(len(raw)) || info.Files < 0 {
			t.Errorf("%+v of %d bytes", info, len(raw))
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "safe" {
			t.Errorf("the victim: %q, %v", b, err)
		}
		if list, err := os.ReadDir(dir + "/outside"); err != nil || len(list) != 1 {
			t.Errorf("outside: %v, %v", list, err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
			t.Errorf("beside: %v, %v", list, err)
		}
		_ = filepath.WalkDir(dir+"/in", func(name string, d fs.DirEntry, err error) error { // a folder may be closed: not to root
			if err != nil {
				t.Error(err)
				return nil
			}
			if st, err := d.Info(); err != nil || st.Mode()&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink) != 0 {
				t.Errorf("%s: %v, %v", name, st, err)
			}
			return nil
		})
		if perr := own.pack(io.Discard); err == nil && perr != nil {
			t.Errorf("pack: %v", perr)
		}
	})
}
