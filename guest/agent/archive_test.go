package agent_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent"
)

// pack makes an archive of headers; a regular file holds its own name, unless it is
// given a size.
func pack(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = h.Name
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.Size = int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// entries reads an archive of a folder: name to a line that says what it is.
func entries(t testing.TB, g arenero.Guest, name string) map[string]string {
	t.Helper()
	r, err := g.ReadTree(t.Context(), "", name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := map[string]string{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s tells its owner", h.Name)
		}
		got[h.Name] = fmt.Sprintf("%c %o %s%s %d", h.Typeflag, h.Mode, h.Linkname, b, h.ModTime.UnixNano())
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("%d bytes behind the end, %v", len(rest), err)
	}
	return got
}

func TestTreeRoundTrip(t *testing.T) {
	g, dir := native(t), writable(t)
	at := time.Unix(1_700_000_000, 123_456_789)
	odd := "caf\xe9\n" + strings.Repeat("n", 200) // not UTF-8, and too long for plain tar
	deep := strings.Repeat("d/", 150) + "end"
	archive := pack(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "closed/", Typeflag: tar.TypeDir, Mode: 0o500, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: "closed/in", ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: "run", Mode: 0o6755, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: odd, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: deep, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "closed/in"},
		tar.Header{Name: "python", Typeflag: tar.TypeSymlink, Linkname: "/usr/bin/python3"},
		tar.Header{Name: "twin", Typeflag: tar.TypeLink, Linkname: "run"},
	)
	for range 2 { // the second time everything is there already
		info, err := g.WriteTree(t.Context(), "", dir+"/new/tree", bytes.NewReader(archive))
		if want := int64(len("closed/in") + len("run") + len(odd) + len(deep)); err != nil || info.Files != 7 || info.Bytes != want {
			t.Fatalf("%+v, %v", info, err)
		}
		unix.Chmod(dir+"/new/tree/closed", 0o700)
	}
	if err := os.Chmod(dir+"/new/tree/closed", 0o500); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/new/tree/pipe", 0o666); err != nil {
		t.Fatal(err)
	}
	got := entries(t, g, dir+"/new/tree")
	file := func(mode, text string) string { return "0 " + mode + " " + text + fmt.Sprint(" ", at.UnixNano()) }
	for name, want := range map[string]string{
		"closed/": "5 500  " + fmt.Sprint(at.UnixNano()), "closed/in": file("644", "closed/in"),
		"run": file("755", "run"), "twin": file("755", "run"), odd: file("644", odd), deep: file("644", deep),
	} {
		if got[name] != want {
			t.Errorf("%q: %q, want %q", name, got[name], want)
		}
	}
	for name, want := range map[string]string{"link": "2 777 closed/in ", "python": "2 777 /usr/bin/python3 "} {
		if !strings.HasPrefix(got[name], want) {
			t.Errorf("%q: %q", name, got[name])
		}
	}
	if len(got) != 8+150 { // and the folders above deep; the pipe is left out
		t.Errorf("%d entries", len(got))
	}
	if left, _ := filepath.Glob(dir + "/new/tree/.arenero-*"); left != nil {
		t.Errorf("%v is left", left)
	}
	// What comes out goes in again.
	r, err := g.ReadTree(t.Context(), "", dir+"/new/tree")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := g.WriteTree(t.Context(), "", dir+"/copy", r); err != nil {
		t.Fatal(err)
	}
	for name, line := range entries(t, g, dir+"/copy") {
		if strings.HasPrefix(line, "0") && line != got[name] {
			t.Errorf("copy of %q: %q", name, line)
		}
	}
}

func TestTreeErrors(t *testing.T) {
	g, dir := native(t), writable(t)
	ctx := t.Context()
	write(t, g, dir+"/file", "x")
	for name, want := range map[string]arenero.Code{dir + "/none": arenero.NotFound, dir + "/file": arenero.Invalid, "": arenero.Invalid} {
		_, err := g.ReadTree(ctx, "", name)
		wantCode(t, err, want)
	}
	_, err := g.WriteTree(ctx, "", dir+"/file", strings.NewReader(""))
	wantCode(t, err, arenero.Invalid)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(pack(t, tar.Header{Name: "a"})) // to memory
	_ = z.Close()
	whole := pack(t, tar.Header{Name: "a"}, tar.Header{Name: strings.Repeat("b", 90)})
	_, err = g.WriteTree(ctx, "", dir+"/z", io.MultiReader(&packed, bytes.NewReader(make([]byte, 1024))))
	wantCode(t, err, arenero.Invalid)
	// An archive that is cut leaves what was whole.
	_, err = g.WriteTree(ctx, "", dir+"/cut", bytes.NewReader(whole[:1024+512+10]))
	wantCode(t, err, arenero.Invalid)
	if list, err := os.ReadDir(dir + "/cut"); err != nil || len(list) != 1 || list[0].Name() != "a" {
		t.Errorf("%v, %v", list, err)
	}
	gone := errors.New("gone")
	_, err = g.WriteTree(ctx, "", dir+"/cut", io.MultiReader(bytes.NewReader(whole), readerFunc(func([]byte) (int, error) { return 0, gone })))
	wantCode(t, err, arenero.Invalid)
	if !errors.Is(err, gone) {
		t.Error(err)
	}
	left, cancel := context.WithCancel(ctx)
	_, err = g.WriteTree(left, "", dir+"/cut", io.MultiReader(bytes.NewReader(whole[:1500]), readerFunc(func([]byte) (int, error) {
		cancel()
		return 1, nil
	})))
	wantCode(t, err, arenero.Canceled)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		list, err := filepath.Glob(dir + "/cut/.*")
		if err == nil && len(list) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(list, err)
		}
	}
}

// Nothing outside of the folder is touched, and nothing gets rights.
func TestTreeOfAStranger(t *testing.T) {
	g, dir := native(t), writable(t)
	for _, sub := range []string{"outside", "in"} {
		if err := g.MakeDir(t.Context(), "", dir+"/"+sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, g, dir+"/outside/victim", "safe")
	long := strings.Repeat("l/", 2100) + "x"
	for name, tc := range map[string]struct {
		want arenero.Code
		list []tar.Header
	}{
		"up":          {arenero.Invalid, []tar.Header{{Name: "../outside/x"}}},
		"up inside":   {arenero.Invalid, []tar.Header{{Name: "a/../../outside/x"}}},
		"up folder":   {arenero.Invalid, []tar.Header{{Name: "../outside/d/", Typeflag: tar.TypeDir}}},
		"absolute":    {arenero.Invalid, []tar.Header{{Name: dir + "/outside/x"}}},
		"the folder":  {arenero.Invalid, []tar.Header{{Name: "."}}},
		"long":        {arenero.Invalid, []tar.Header{{Name: long}}},
		"long part":   {arenero.Invalid, []tar.Header{{Name: strings.Repeat("p", 300)}}},
		"link, in it": {arenero.Denied, []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/x"}}},
		"far link":    {arenero.Denied, []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: dir + "/outside"}, {Name: "l/d/", Typeflag: tar.TypeDir}}},
		"two links": {arenero.Denied, []tar.Header{
			{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "."}, {Name: "a/b", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "b/outside/x"},
		}},
		"hard link up":        {arenero.Invalid, []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/victim"}}},
		"hard link far":       {arenero.Invalid, []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: dir + "/outside/victim"}}},
		"hard link by a link": {arenero.Denied, []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/victim"}}},
		"hard link to none":   {arenero.NotFound, []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "none"}}},
		"device":              {arenero.Invalid, []tar.Header{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}},
		"disk":                {arenero.Invalid, []tar.Header{{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}}},
		"pipe":                {arenero.Invalid, []tar.Header{{Name: "pipe", Typeflag: tar.TypeFifo}}},
		"no target":           {arenero.Invalid, []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("t", 5000)}}},
		"file over a folder":  {arenero.Conflict, []tar.Header{{Name: "d/", Typeflag: tar.TypeDir}, {Name: "d"}}},
		// A link is replaced, not written through.
		"file over a link":   {"", []tar.Header{{Name: "v", Typeflag: tar.TypeSymlink, Linkname: "../outside/victim"}, {Name: "v"}}},
		"folder over a link": {arenero.Denied, []tar.Header{{Name: "o", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "o/", Typeflag: tar.TypeDir, Mode: 0o777}}},
		"set-id":             {"", []tar.Header{{Name: "s", Mode: 0o7777}, {Name: "sd/", Typeflag: tar.TypeDir, Mode: 0o7777}}},
		"odd times":          {"", []tar.Header{{Name: "old", ModTime: time.Unix(-1<<40, 0), Format: tar.FormatPAX}, {Name: "new", ModTime: time.Unix(1<<55, 0), Format: tar.FormatPAX}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := g.WriteTree(t.Context(), "", dir+"/in/"+t.Name()[len("TestTreeOfAStranger/"):]+"/in", bytes.NewReader(pack(t, tc.list...)))
			if arenero.CodeOf(err) != tc.want && (err != nil || tc.want != "") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if list, err := os.ReadDir(dir + "/outside"); err != nil || len(list) != 1 || read(t, g, dir+"/outside/victim", 0, -1) != "safe" {
		t.Errorf("outside: %v, %v", list, err)
	}
	tame(t, dir)
}

// tame checks that nothing below has set-id bits, is a device or is left half done.
func tame(t testing.TB, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if st.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 || strings.HasPrefix(d.Name(), ".arenero-") {
			t.Errorf("%s: %v", name, st.Mode())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A sparse file of a few bytes could fill the disk.
func TestTreeSparse(t *testing.T) {
	g, dir := native(t), writable(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	text := "1\n1099511627775\n1\n" // one piece of data, at the end of 1 TiB
	body := text + strings.Repeat("\x00", 512-len(text)) + "x"
	h := &tar.Header{Name: "GNUSparseFile.0/big", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatPAX}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeXHeader}); err == nil {
		t.Fatal("the writer writes raw headers now: use it")
	}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, body) // to memory
	_ = w.Close()
	// The writer refuses such records, so they are put in front by hand.
	records := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=big", "GNU.sparse.realsize=1099511627776"} {
		n := len(kv) + 3
		if n+1 > 9 {
			n++
		}
		records += fmt.Sprintf("%d %s\n", n, kv)
	}
	x := raw("x", records)
	_, err := g.WriteTree(t.Context(), "", dir+"/s", io.MultiReader(bytes.NewReader(x), &b))
	wantCode(t, err, arenero.Invalid)
	if !strings.Contains(fmt.Sprint(err), "sparse") {
		t.Error(err)
	}
	if list, _ := os.ReadDir(dir + "/s"); len(list) != 0 {
		t.Error(list)
	}
}

// raw is a header with a body, as bytes.
func raw(kind, body string) []byte {
	b := make([]byte, 512)
	copy(b, "header")
	copy(b[100:], "0000644\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", len(body)))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ")
	copy(b[156:], kind)
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return slices.Concat(b, []byte(body), make([]byte, -len(body)&511))
}

// Rights are the user's, in both directions.
func TestTreeAsTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it changes users")
	}
	g, dir := native(t), writable(t)
	if err := os.MkdirAll(dir+"/roots/closed", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/roots/closed/secret", []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, err := g.WriteTree(ctx, "", dir+"/roots", bytes.NewReader(pack(t, tar.Header{Name: "x"})))
	wantCode(t, err, arenero.Denied)
	_, err = g.WriteTree(ctx, "", "/etc/arenero-test", bytes.NewReader(pack(t, tar.Header{Name: "x"})))
	wantCode(t, err, arenero.Denied)
	r, err := g.ReadTree(ctx, "", dir+"/roots")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	wantCode(t, err, arenero.Denied)
	if bytes.Contains(b, []byte("root's")) {
		t.Error("it was read")
	}
	if _, err := g.WriteTree(ctx, "", dir+"/mine", bytes.NewReader(pack(t, tar.Header{Name: "d/x", Uid: 0, Uname: "root"}))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mine", "mine/d", "mine/d/x"} {
		if info, err := g.Stat(ctx, "", dir+"/"+name); err != nil || info.Owner != "54321" && info.Owner != "tester" {
			t.Errorf("%s: %+v, %v", name, info.Owner, err)
		}
	}
}

// A big tree streams through both sides in memory that does not grow with it.
func TestTreeStreams(t *testing.T) {
	g, dir := native(t, func(c *agent.Config) { c.Limits.Disk = 0 }), writable(t)
	const size = 64 << 20
	if err := os.WriteFile(dir+"/big", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(dir+"/big", size); err != nil {
		t.Fatal(err)
	}
	r, err := g.ReadTree(t.Context(), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "big" {
			break
		}
	}
	if n, err := io.Copy(io.Discard, tr); err != nil || n != size {
		t.Fatal(n, err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 32<<20 {
		t.Errorf("%d MiB held", grown>>20)
	}
}
