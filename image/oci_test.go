package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// entry is one entry of a test archive.
func entry(typ byte, name, body string, edit ...func(*tar.Header)) func(*tar.Writer) error {
	return func(w *tar.Writer) error {
		h := &tar.Header{Typeflag: typ, Name: name, Mode: 0o644, ModTime: time.Unix(1_600_000_000, 0)}
		switch typ {
		case tar.TypeReg:
			h.Size = int64(len(body))
		case tar.TypeDir:
			h.Mode = 0o755
		default:
			h.Linkname = body
		}
		for _, e := range edit {
			e(h)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if typ != tar.TypeReg {
			return nil
		}
		_, err := io.WriteString(w, body)
		return err
	}
}

func owner(uid, gid int) func(*tar.Header) { return func(h *tar.Header) { h.Uid, h.Gid = uid, gid } }
func mode(m int64) func(*tar.Header)       { return func(h *tar.Header) { h.Mode = m } }

func file(name, body string, edit ...func(*tar.Header)) func(*tar.Writer) error {
	return entry(tar.TypeReg, name, body, edit...)
}

func archive(t testing.TB, entries ...func(*tar.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := e(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// base is a layer that could be a small system.
func base(t testing.TB) []byte {
	return archive(t,
		entry(tar.TypeDir, "etc/", ""),
		file("etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\napp:x:500:501::/srv/app:/bin/sh\n"),
		file("etc/group", "root:x:0:\nstaff:x:77:\n"),
		file("app/old", "old"), file("app/keep", "keep"), file("data/a", "a"), file("data/sub/b", "b"),
		file("bin/tool", "tool", mode(0o6755), owner(12, 34)),
		entry(tar.TypeLink, "bin/hard", "bin/tool"),
		entry(tar.TypeSymlink, "bin/soft", "/etc/shadow"),
		entry(tar.TypeSymlink, "up", "../../../../etc"),
		entry(tar.TypeSymlink, "run", "/etc"),
		entry(tar.TypeChar, "dev/mem", "", func(h *tar.Header) { h.Devmajor, h.Devminor = 1, 1 }),
		entry(tar.TypeFifo, "pipe", ""),
	)
}

// ociImage makes an image of raw layers.
func ociImage(t testing.TB, cfg v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for i, data := range layers {
		var l v1.Layer
		var err error
		if i%2 == 1 {
			l, err = zstdLayer(data)
		} else {
			l, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l}); err != nil {
			t.Fatal(err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, cfg
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// zstdLayer is a layer compressed by zstd, whose DiffID is of the plain bytes.
func zstdLayer(data []byte) (v1.Layer, error) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		return nil, err
	}
	diff, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return &diffLayer{static.NewLayer(enc.EncodeAll(data, nil), types.OCILayerZStd), diff}, nil
}

type diffLayer struct {
	v1.Layer

	diff v1.Hash
}

func (l *diffLayer) DiffID() (v1.Hash, error) { return l.diff, nil }

// testRegistry is a registry in this process.
func testRegistry(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) string {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPull(t *testing.T) {
	reg := testRegistry(t)
	img := ociImage(t, v1.Config{
		User: "app:staff", WorkingDir: "app", Entrypoint: []string{"/bin/tool"}, Cmd: []string{"-x"},
		Env: []string{"A=b=c", "LD_PRELOAD=/x.so", "bad name=1", "nothing", "NUL=a\x00b"},
	}, base(t), archive(t,
		file("app/.wh.old", ""), file("data/new", "new"), file("data/.wh..wh..opq", ""), file("data/last", "last"),
		file("up/passwd", "mine"), // the link of the layer below becomes a folder
	))
	digest := push(t, reg+"/team/app:v1", img)
	s := newStore(t)
	steps := 0
	got, err := s.Pull(t.Context(), reg+"/team/app:v1", Options{}, func(string, int64, int64) { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(reg, ":", "-") + "/team/app:v1"; got.Name != want || got.Source != reg+"/team/app@"+digest || steps == 0 {
		t.Errorf("name %s, source %s", got.Name, got.Source)
	}
	if got.User != (arenero.User{Name: "app", UID: 500, GID: 77, Home: "/srv/app"}) || got.Workdir != "/app" || len(got.Start) != 2 {
		t.Errorf("manifest %+v", got)
	}
	if got.Env["A"] != "b=c" || got.Env["LD_PRELOAD"] != "/x.so" || got.Env["PATH"] == "" || len(got.Env) != 3 {
		t.Errorf("env %q", got.Env)
	}
	dir := mountImage(t, got.RootFS)
	for path, want := range map[string]string{
		"app/keep": "keep", "data/new": "new", "data/last": "last", "bin/tool": "tool", "bin/hard": "tool", "up/passwd": "mine",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != want {
			t.Errorf("%s holds %q: %v", path, b, err)
		}
	}
	for _, path := range []string{"app/old", "app/.wh.old", "data/a", "data/sub", "data/.wh..wh..opq", "dev/mem", "pipe"} {
		if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
			t.Errorf("%s is there", path)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "bin/tool"), &st); err != nil || st.Mode != unix.S_IFREG|0o755 || st.Uid != 12 || st.Gid != 34 || st.Nlink != 2 || st.Mtim.Sec != 1_600_000_000 {
		t.Errorf("bin/tool: %+v", st)
	}
	if to, err := os.Readlink(filepath.Join(dir, "bin/soft")); err != nil || to != "/etc/shadow" {
		t.Errorf("bin/soft: %s %v", to, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "run")); err != nil || !info.IsDir() {
		t.Errorf("run: %v %v", info, err)
	}

	// The same image by its digest, under another name, is the same file.
	pinned, err := s.Pull(t.Context(), reg+"/team/app@"+digest, Options{Name: "pinned"}, nil)
	if err != nil || pinned.Digest != got.Digest {
		t.Fatalf("pinned: %s, want %s: %v", pinned.Digest, got.Digest, err)
	}
	if blobs, _ := os.ReadDir(s.path("blobs")); len(blobs) != 1 {
		t.Errorf("%d blobs", len(blobs))
	}
	d, err := s.Inspect(t.Context(), "pinned")
	if err != nil || len(d.Names) != 2 {
		t.Errorf("inspect: %+v %v", d, err)
	}
}

func TestPullFailures(t *testing.T) {
	reg := testRegistry(t)
	s := newStore(t)
	good := ociImage(t, v1.Config{}, base(t))
	push(t, reg+"/x:1", good)
	other := mutate.MediaType(good, types.OCIManifestSchema1)
	cfg, _ := other.ConfigFile()
	cfg = cfg.DeepCopy()
	cfg.Architecture = "s390x"
	other, err := mutate.ConfigFile(other, cfg)
	if err != nil {
		t.Fatal(err)
	}
	push(t, reg+"/other:1", other)
	push(t, reg+"/agent:1", ociImage(t, v1.Config{User: "65533"}, base(t)))
	push(t, reg+"/nobody:1", ociImage(t, v1.Config{User: "who"}, base(t)))
	for ref, want := range map[string]arenero.Code{
		"UPPER CASE":  arenero.Invalid,
		reg + "/no:1": arenero.NotFound,
		reg + "/x:2":  arenero.NotFound,
		reg + "/x@sha256:" + strings.Repeat("0", 64): arenero.NotFound,
		reg + "/other:1":  arenero.Invalid,
		reg + "/agent:1":  arenero.Invalid,
		reg + "/nobody:1": arenero.Invalid,
		"127.0.0.1:1/x":   arenero.Unavailable,
	} {
		if _, err := s.Pull(t.Context(), ref, Options{}, nil); arenero.CodeOf(err) != want {
			t.Errorf("%s: code %s: %v", ref, arenero.CodeOf(err), err)
		}
	}
	if _, err := s.Pull(t.Context(), reg+"/x:1", Options{Platform: "windows/amd64"}, nil); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("platform: %v", err)
	}
	if _, err := s.Pull(t.Context(), reg+"/x:1", Options{Name: "No Name"}, nil); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("name: %v", err)
	}
	nothingHalfMade(t, s, 0)
}

// saved writes an image as docker save does; layouts writes it as an OCI layout.
func saved(t *testing.T, img v1.Image, tag string) string {
	t.Helper()
	r, err := name.NewTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(out, r, img); err != nil {
		t.Fatal(err)
	}
	return out
}

func layoutDir(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "My Layout.d")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tarOf(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "layout.tar.gz")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []io.Closer{w, z, f} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestImport(t *testing.T) {
	s := newStore(t)
	img := ociImage(t, v1.Config{}, base(t), archive(t, file("x", "x")))
	dir := layoutDir(t, img)
	digest := ""
	for path, want := range map[string]string{
		saved(t, ociImage(t, v1.Config{}, base(t), archive(t), archive(t, file("x", "x"))), "docker.io/library/thing:2"): "thing:2",
		dir:           "my-layout",
		tarOf(t, dir): "layout",
	} {
		got, err := s.Import(t.Context(), path, Options{}, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got.Name != want || got.User.Name != "node" || got.Workdir != "/workspace" || !strings.HasPrefix(got.Source, "import ") {
			t.Errorf("%s: %+v", path, got)
		}
		if digest != "" && got.Digest != digest {
			t.Errorf("%s: digest %s, want %s", path, got.Digest, digest)
		}
		digest = got.Digest
	}
	nothing := filepath.Join(t.TempDir(), "x.tar")
	for path, want := range map[string]arenero.Code{
		nothing + "no":                          arenero.NotFound,
		writeTo(t, nothing, nil):                arenero.Invalid,
		writeTo(t, nothing+"1", base(t)):        arenero.Invalid,
		writeTo(t, nothing+"2", []byte("text")): arenero.Invalid,
		t.TempDir():                             arenero.Invalid,
	} {
		if _, err := s.Import(t.Context(), path, Options{}, nil); arenero.CodeOf(err) != want {
			t.Errorf("%s: code %s: %v", path, arenero.CodeOf(err), err)
		}
	}
	if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func writeTo(t *testing.T, path string, data []byte) string {
	t.Helper()
	write(t, path, data, 0o600)
	return path
}

func TestTamperedLayersAreRefused(t *testing.T) {
	dir := layoutDir(t, ociImage(t, v1.Config{}, base(t)))
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil || len(blobs) != 3 {
		t.Fatalf("%v %v", blobs, err)
	}
	for _, b := range blobs {
		good, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		evil := bytes.Replace(good, []byte(`"linux"`), []byte(`"linuy"`), 1)
		if bytes.Equal(evil, good) {
			evil = bytes.Replace(good, []byte(`"schemaVersion":2`), []byte(`"schemaVersion":3`), 1)
		}
		if bytes.HasPrefix(good, []byte{0x1f, 0x8b}) {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			_, _ = w.Write(append(base(t), make([]byte, 512)...)) // as good an archive, other bytes
			_ = w.Close()
			evil = z.Bytes()
		}
		write(t, b, evil, 0o600)
		s := newStore(t)
		if _, err := s.Import(t.Context(), dir, Options{}, nil); arenero.CodeOf(err) != arenero.Invalid || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%s: %v", filepath.Base(b), err)
		}
		nothingHalfMade(t, s, 0)
		write(t, b, good, 0o600)
	}
}

func TestImportOnAFullDisk(t *testing.T) {
	big := archive(t, file("big", strings.Repeat("random", 5<<20)))
	path := layoutDir(t, ociImage(t, v1.Config{}, big))
	for _, size := range []string{"20m", "40m"} { // while unpacking, and before writing
		s, err := Open(smallDisk(t, size))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Import(t.Context(), path, Options{}, nil); arenero.CodeOf(err) != arenero.Exhausted || arenero.HintOf(err) == "" {
			t.Errorf("%s: code %s: %v", size, arenero.CodeOf(err), err)
		}
		nothingHalfMade(t, s, 0)
	}
}
