package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/arenero/arenero"
)

// Import takes an image from this machine: an archive of "docker save" or of an
// OCI layout, also compressed by gzip or zstd, or a folder with an OCI layout.
//
// Errors: NotFound, Invalid (no image, a broken or hostile one), TooLarge,
// Exhausted, Canceled. None of them leaves anything.
func (s *Store) Import(ctx context.Context, file string, o Options, p Progress) (arenero.Image, error) {
	const op = "import image"
	img, err := s.importFrom(ctx, op, file, o, p)
	if errors.Is(err, fs.ErrNotExist) && arenero.CodeOf(err) == arenero.Internal {
		if _, serr := os.Stat(file); serr != nil {
			return img, arenero.Errorf(arenero.NotFound, op, "", "no file %q", clip(file))
		}
		return img, arenero.Errorf(arenero.Invalid, op, "", "%q is not a whole image: %w", clip(file), err)
	}
	return img, fail(op, "", err)
}

func (s *Store) importFrom(ctx context.Context, op, file string, o Options, p Progress) (arenero.Image, error) {
	info, err := os.Stat(file)
	if err != nil {
		return arenero.Image{}, err
	}
	dir := file
	if !info.IsDir() {
		w, err := s.newWork("import")
		if err != nil {
			return arenero.Image{}, err
		}
		defer w.done()
		dir = w.path
		if err := untar(ctx, file, info.Size(), dir, o.Limits, p); err != nil {
			return arenero.Image{}, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return arenero.Image{}, err
	}
	defer root.Close()
	src, err := localSource(root, o)
	if err != nil {
		return arenero.Image{}, err
	}
	if src.from = "import " + clip(filepath.Base(file)); src.name == "" {
		src.name = stem(file)
	}
	return s.adopt(ctx, op, src, o, p)
}

// untar unpacks the archive itself, with the same distrust as a layer.
func untar(ctx context.Context, file string, size int64, dir string, l Limits, p Progress) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	plain, err := decompress(&counter{ctx: ctx, r: f, tell: func(n int64) { p.step("read archive", n, size) }})
	if err != nil {
		return err
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	x := newExtractor(root, l)
	x.plain = true
	return x.layer(ctx, plain)
}

// localSource finds the image in an unpacked archive or a layout.
func localSource(root *os.Root, o Options) (*source, error) {
	if index, err := readFile(root, "index.json", maxDocument); err == nil {
		return layoutSource(root, index, o)
	}
	if manifest, err := readFile(root, "manifest.json", maxDocument); err == nil {
		return savedSource(root, manifest)
	}
	return nil, arenero.Errorf(arenero.Invalid, "read image", "", "neither an OCI layout nor an archive of docker save").
		WithHint("make one with: docker save NAME -o FILE.tar")
}

// savedSource reads what "docker save" has written for long.
func savedSource(root *os.Root, manifest []byte) (*source, error) {
	const op = "read image"
	var all []struct {
		Config   string   `json:"Config"`   //nolint:tagliatelle // Docker's spelling
		RepoTags []string `json:"RepoTags"` //nolint:tagliatelle // Docker's spelling
		Layers   []string `json:"Layers"`   //nolint:tagliatelle // Docker's spelling
	}
	if err := json.Unmarshal(manifest, &all); err != nil {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "manifest.json: %w", err)
	}
	if len(all) != 1 || len(all[0].Layers) > maxLayers {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "the archive holds %d images", len(all)).WithHint("save one image at a time")
	}
	m := all[0]
	src := &source{}
	if len(m.RepoTags) > 0 {
		src.name = taggedName(m.RepoTags[0])
	}
	var err error
	if src.config, err = readFile(root, filepath.FromSlash(path.Clean(m.Config)), maxDocument); err != nil {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "its config: %w", err)
	}
	for _, l := range m.Layers {
		la, err := localLayer(root, path.Clean(l))
		if err != nil {
			return nil, err
		}
		src.layers = append(src.layers, la)
	}
	return src, nil
}

// layoutSource reads an OCI layout: index, perhaps more indexes, manifest, config.
func layoutSource(root *os.Root, index []byte, o Options) (*source, error) {
	const op = "read image"
	want, err := parsePlatform(o.Platform)
	if err != nil {
		return nil, err
	}
	src := &source{}
	for range 4 { // indexes in indexes
		idx, err := v1.ParseIndexManifest(bytes.NewReader(index))
		if err != nil {
			return nil, arenero.Errorf(arenero.Invalid, op, "", "index: %w", err)
		}
		d, err := choose(idx.Manifests, want)
		if err != nil {
			return nil, err
		}
		if src.name == "" {
			src.name = layoutName(d.Annotations)
		}
		doc, err := readBlob(root, d.Digest)
		if err != nil {
			return nil, err
		}
		if d.MediaType.IsIndex() {
			index = doc
			continue
		}
		m, err := v1.ParseManifest(bytes.NewReader(doc))
		if err != nil {
			return nil, arenero.Errorf(arenero.Invalid, op, "", "manifest: %w", err)
		}
		if src.config, err = readBlob(root, m.Config.Digest); err != nil {
			return nil, err
		}
		if len(m.Layers) > maxLayers {
			return nil, arenero.Errorf(arenero.TooLarge, op, "", "%d layers", len(m.Layers))
		}
		for _, l := range m.Layers {
			la, err := localLayer(root, blobPath(l.Digest))
			if err != nil {
				return nil, err
			}
			src.layers = append(src.layers, la)
		}
		return src, nil
	}
	return nil, arenero.Errorf(arenero.Invalid, op, "", "too many indexes in each other")
}

// choose picks the one manifest for a platform; one without a platform is taken
// when there is no choice.
func choose(all []v1.Descriptor, want *v1.Platform) (v1.Descriptor, error) {
	var fit []v1.Descriptor
	for _, d := range all {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		if d.Platform == nil || d.Platform.OS == "" || d.Platform.OS == want.OS && d.Platform.Architecture == want.Architecture {
			fit = append(fit, d)
		}
	}
	if len(fit) != 1 {
		return v1.Descriptor{}, arenero.Errorf(arenero.Invalid, "read image", "", "it holds %d images for %s", len(fit), want).
			WithHint("export one image at a time, or choose with --platform")
	}
	return fit[0], nil
}

func blobPath(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// readBlob reads a document of a layout and checks it against its digest.
func readBlob(root *os.Root, h v1.Hash) ([]byte, error) {
	data, err := readFile(root, blobPath(h), maxDocument)
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, "read image", "", "blob %s: %w", h, err)
	}
	sum := sha256.New()
	sum.Write(data)
	return data, checkSum(sum, h)
}

func localLayer(root *os.Root, file string) (layer, error) {
	info, err := root.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return layer{}, arenero.Errorf(arenero.Invalid, "read image", "", "layer %.100q is missing", file)
	}
	return layer{
		size: info.Size(),
		open: func(context.Context) (io.ReadCloser, error) { return root.Open(file) },
	}, nil
}

// layoutName reads the name that an exporter noted down, if it did.
func layoutName(notes map[string]string) string {
	if n := taggedName(notes["io.containerd.image.name"]); n != "" {
		return n
	}
	if n := notes["org.opencontainers.image.ref.name"]; strings.ContainsAny(n, "/:") {
		return taggedName(n)
	}
	return ""
}

func taggedName(tag string) string {
	if tag == "" {
		return ""
	}
	r, err := name.ParseReference(tag)
	if err != nil {
		return ""
	}
	return localName(r)
}

// stem makes a name of a file's: "My App.tar.gz" is my-app.
func stem(file string) string {
	base, _, _ := strings.Cut(strings.ToLower(filepath.Base(filepath.Clean(file))), ".")
	base = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, base)
	return strings.Trim(base, "-")
}
