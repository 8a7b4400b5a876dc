package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/arenero/arenero/guest"
	"github.com/arenero/arenero/image"
)

// Busybox makes an image of one static program, as anybody could: by importing
// what `docker save` writes. It needs Debian's busybox-static.
func Busybox(t testing.TB) (rootfs string) {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("read busybox: %v: install busybox-static", err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	must(t, w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}))
	_, err = w.Write(program)
	must(t, err)
	for _, applet := range []string{"sh", "echo", "cat", "sleep", "head", "tail", "od", "awk", "id", "hostname", "ls", "true", "dd", "ps", "kill"} {
		must(t, w.WriteHeader(&tar.Header{Name: "bin/" + applet, Linkname: "busybox", Typeflag: tar.TypeSymlink}))
	}
	must(t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, l)
	must(t, err)
	file := filepath.Join(t.TempDir(), "busybox.tar")
	tag, err := name.NewTag("busybox:test")
	must(t, err)
	must(t, tarball.WriteToFile(file, tag, img))

	store, err := image.Open(filepath.Join(t.TempDir(), "images"))
	must(t, err)
	made, err := store.Import(context.Background(), file, image.Options{Name: "busybox"}, nil)
	must(t, err)
	return made.RootFS
}

// Agent makes the image of the guest agent that engines mount.
func Agent(t testing.TB) (path string) {
	t.Helper()
	binary, err := guest.Binary()
	must(t, err)
	path, _, err = image.Agent(t.TempDir(), binary)
	must(t, err)
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
