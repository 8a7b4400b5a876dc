package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/image"
)

// LocalImages returns an image store for the engine of [Local] with one image,
// "python". There is next to nothing in it, since that engine shows this
// machine's files; it says who user code is (uid 1000), where it starts and,
// if wanted, which kernels a warm image has.
func LocalImages(t testing.TB, warm ...arenero.WarmKernel) *image.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	s, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	tree := smallTree(t)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tree)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{User: "1000", WorkingDir: localWorkdir, Env: []string{"IMAGE_SAYS=hello"}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, name.MustParseReference("local/python:latest"), img); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(context.Background(), file, image.Options{Name: "python", Platform: "linux/amd64"}, nil); err != nil {
		t.Fatal(err)
	}
	if len(warm) > 0 {
		keepWarm(t, filepath.Join(dir, "names", "python.json"), warm)
	}
	return s
}

// keepWarm writes into a manifest what only a recipe can say.
func keepWarm(t testing.TB, manifest string, warm []arenero.WarmKernel) {
	b, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	m["warm"] = warm
	if b, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func smallTree(t testing.TB) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
		"usr/share/jupyter/kernels/python3/kernel.json": `{"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
			"display_name": "Python 3", "language": "python"}`,
	} {
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(text))}); err != nil {
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
