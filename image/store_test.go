package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/arenero/arenero"
)

// imported makes an image of one file in the store.
func imported(t *testing.T, s *Store, name, body string) arenero.Image {
	t.Helper()
	dir := layoutDir(t, ociImage(t, v1.Config{}, archive(t, file("body", body))))
	img, err := s.Import(t.Context(), dir, Options{Name: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestStore(t *testing.T) {
	s := newStore(t)
	a, b, c := imported(t, s, "a", "1"), imported(t, s, "b", "1"), imported(t, s, "c", "2")
	if a.Digest != b.Digest || a.Digest == c.Digest {
		t.Fatalf("digests %s %s %s", a.Digest, b.Digest, c.Digest)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 3 || list[0].Name != "a" || list[2].RootFS == "" {
		t.Fatalf("list %+v: %v", list, err)
	}
	if got, err := s.Get(t.Context(), c.Digest); err != nil || got.Name != "c" {
		t.Errorf("by digest: %+v %v", got, err)
	}
	imported(t, s, "tagged:latest", "2")
	if got, err := s.Get(t.Context(), "tagged"); err != nil || got.Name != "tagged:latest" {
		t.Errorf("without its tag: %+v %v", got, err)
	}
	if err := s.Remove(t.Context(), "tagged"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), a.Digest); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("remove by digest: %v", err)
	}
	// A blob stays while another name stands for it.
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.RootFS); err != nil {
		t.Errorf("b lost its file: %v", err)
	}
	if err := s.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.RootFS); err == nil {
		t.Error("the file outlives its names")
	}
	for _, name := range []string{"a", "python", "ghcr.io/x/y:1", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := s.Get(t.Context(), name); arenero.CodeOf(err) != arenero.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Remove(t.Context(), "a"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("remove again: %v", err)
	}
	for _, name := range []string{"../c", "", "c\x00", "C"} {
		if _, err := s.Get(t.Context(), name); arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("%q: %v", name, err)
		}
		if err := s.Remove(t.Context(), name); arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	if _, err := s.Get(t.Context(), "python"); !strings.Contains(arenero.HintOf(err), "image build python") {
		t.Errorf("hint %q", arenero.HintOf(err))
	}
	nothingHalfMade(t, s, 1)
}

func TestAnImageInUseOutlivesItsName(t *testing.T) {
	s := newStore(t)
	old := imported(t, s, "x", "1")
	f, err := os.Open(old.RootFS) // as a running sandbox has it
	if err != nil {
		t.Fatal(err)
	}
	fresh := imported(t, s, "x", "2")
	if fresh.Digest == old.Digest {
		t.Fatal("equal digests")
	}
	if _, err := os.Stat(old.RootFS); err != nil {
		t.Errorf("taken from a sandbox: %v", err)
	}
	_ = f.Close()
	imported(t, s, "y", "3")
	if _, err := os.Stat(old.RootFS); err == nil {
		t.Error("never collected")
	}
}

func TestBrokenManifestsHurtNobodyElse(t *testing.T) {
	s := newStore(t)
	imported(t, s, "good", "1")
	for name, text := range map[string]string{
		"bad.json": "{", "empty.json": "", "liar.json": `{"name":"other","digest":"sha256:` + strings.Repeat("0", 64) + `"}`,
		"path.json": `{"name":"path","digest":"sha256:../../etc/passwd"}`, ".new-1": "{", "gone.json": `{"name":"gone","digest":"sha256:` + strings.Repeat("0", 64) + `"}`,
	} {
		write(t, s.path("names", name), []byte(text), 0o600)
	}
	if _, err := s.Get(t.Context(), "good"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"bad", "path", "gone", "other"} {
		if _, err := s.Get(t.Context(), name); arenero.CodeOf(err) != arenero.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpenFailures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil, 0o600)
	if _, err := Open(file); err == nil {
		t.Error("a file is no store")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newStore(t)
	if _, err := s.Get(ctx, "x"); arenero.CodeOf(err) != arenero.Canceled {
		t.Errorf("canceled: %v", err)
	}
}

func testKey(img arenero.Image) Key {
	return Key{Image: img.Digest, Engine: "gvisor 1", Platform: "systrap", CPU: "c", Agent: "a", Profile: "p"}
}

func fillWith(text string) func(string) error {
	return func(dir string) error {
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile(filepath.Join(dir, "pages.img"), []byte(text), 0o600),
			os.WriteFile(filepath.Join(dir, "sub/state"), []byte("s"), 0o600),
		)
	}
}

func TestSnapshots(t *testing.T) {
	s := newStore(t)
	img := imported(t, s, "x", "1")
	k := testKey(img)
	if dir, why := s.Lookup(k); dir != "" || !strings.Contains(why, "no warm snapshot") {
		t.Errorf("%q %q", dir, why)
	}
	dir, err := s.Put(t.Context(), k, fillWith("memory"))
	if err != nil {
		t.Fatal(err)
	}
	if got, why := s.Lookup(k); got != dir || why != "" {
		t.Errorf("%q %q, want %q", got, why, dir)
	}
	if err := Verify(dir, true); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Key){
		"made by gvisor 1 and this is gvisor 2":            func(k *Key) { k.Engine = "gvisor 2" },
		"made on platform systrap and this is kvm":         func(k *Key) { k.Platform = "kvm" },
		"another kind of processor":                        func(k *Key) { k.CPU = "d" },
		"another build of the guest agent":                 func(k *Key) { k.Agent = "b" },
		"another profile":                                  func(k *Key) { k.Profile = "q" },
		"no digest":                                        func(k *Key) { k.Image = "../x" },
		"no warm snapshot of this image has been made yet": func(k *Key) { k.Image = "sha256:" + strings.Repeat("1", 64) },
	} {
		other := k
		change(&other)
		if dir, why := s.Lookup(other); dir != "" || !strings.Contains(why, want) {
			t.Errorf("%q %q, want %q", dir, why, want)
		}
	}
	// The nearest one tells the reason.
	far := k
	far.Engine, far.Agent = "gvisor 0", "z"
	if _, err := s.Put(t.Context(), far, fillWith("x")); err != nil {
		t.Fatal(err)
	}
	near := k
	near.Agent = "b"
	if _, why := s.Lookup(near); strings.Contains(why, "gvisor") {
		t.Errorf("why %q", why)
	}
	if err := s.PruneSnapshots(t.Context(), img.Digest, k); err != nil {
		t.Fatal(err)
	}
	if all := s.snapshots(img.Digest); len(all) != 1 || all[0].Key != k {
		t.Errorf("after pruning: %+v", all)
	}
	if err := s.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the snapshot outlives its image")
	}
	if _, err := s.Put(t.Context(), k, fillWith("x")); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("put without an image: %v", err)
	}
	nothingHalfMade(t, s, 0)
}

func TestSnapshotFailures(t *testing.T) {
	s := newStore(t)
	img := imported(t, s, "x", "1")
	k := testKey(img)
	boom := errors.New("boom")
	for name, fill := range map[string]func(string) error{
		"error":   func(dir string) error { return errors.Join(fillWith("x")(dir), boom) },
		"nothing": func(string) error { return nil },
		"link":    func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "l")) },
	} {
		if _, err := s.Put(t.Context(), k, fill); err == nil {
			t.Errorf("%s passed", name)
		}
		if dir, _ := s.Lookup(k); dir != "" {
			t.Errorf("%s: half made", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.Put(ctx, k, func(dir string) error { cancel(); return fillWith("x")(dir) }); arenero.CodeOf(err) != arenero.Canceled {
		t.Errorf("canceled: %v", err)
	}
	for name, damage := range map[string]func(string) error{
		"shorter": func(dir string) error { return os.Truncate(filepath.Join(dir, "pages.img"), 3) },
		"missing": func(dir string) error { return os.Remove(filepath.Join(dir, "sub/state")) },
		"note":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "../meta.json"), []byte("{"), 0o600) },
	} {
		dir, err := s.Put(t.Context(), k, fillWith("memory"))
		if err != nil {
			t.Fatal(err)
		}
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		if got, why := s.Lookup(k); got != "" || !strings.Contains(why, "damaged") {
			t.Errorf("%s: %q %q", name, got, why)
		}
	}
	dir, err := s.Put(t.Context(), k, fillWith("memory"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "pages.img"), []byte("Memory"), 0o600)
	if Verify(dir, false) != nil || Verify(dir, true) == nil {
		t.Error("only a full look sees another byte")
	}
	nothingHalfMade(t, s, 1)
}

// noticed is a context that tells when somebody waits for its end.
type noticed struct {
	context.Context

	waits chan struct{}
	once  sync.Once
}

func (n *noticed) Done() <-chan struct{} {
	n.once.Do(func() { close(n.waits) })
	return n.Context.Done()
}

func TestTwoMakersOfOneSnapshot(t *testing.T) {
	s := newStore(t)
	k := testKey(imported(t, s, "x", "1"))
	filled := make(chan struct{}, 2)
	begun := make(chan struct{})
	errs := make(chan error, 2)
	put := func(ctx context.Context) {
		_, err := s.Put(ctx, k, func(dir string) error {
			filled <- struct{}{}
			<-begun
			return fillWith("m")(dir)
		})
		errs <- err
	}
	go put(t.Context()) // joined by errs
	<-filled
	second := &noticed{t.Context(), make(chan struct{}), sync.Once{}}
	go put(second) // joined by errs
	<-second.waits
	close(begun)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(filled) != 0 {
		t.Error("it was made twice")
	}
}

func TestSnapshotOnAFullDisk(t *testing.T) {
	s, err := Open(smallDisk(t, "8m"))
	if err != nil {
		t.Fatal(err)
	}
	k := testKey(imported(t, s, "x", "1"))
	if _, err := s.Put(t.Context(), k, fillWith(strings.Repeat("m", 20<<20))); arenero.CodeOf(err) != arenero.Exhausted {
		t.Errorf("code %s: %v", arenero.CodeOf(err), err)
	}
	nothingHalfMade(t, s, 1)
}
