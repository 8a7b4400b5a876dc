package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/arenero/arenero"
)

// Options say how an OCI image becomes one of ours.
type Options struct {
	Name     string // what to call it; "" derives it from where it comes from
	Platform string // "linux/arm64"; "" is linux on this machine's processor
	Limits   Limits
}

// A source is an OCI image wherever it comes from. The config is already what
// its digest says; a layer is checked against the config while it is unpacked.
type source struct {
	from   string // for the manifest: "registry.example/x@sha256:..."
	name   string // what to call it when nobody says
	config []byte
	layers []layer
}

type layer struct {
	size int64 // compressed; 0 is not known
	open func(context.Context) (io.ReadCloser, error)
}

// Bounds of the documents of an image.
const (
	maxDocument = 8 << 20
	maxLayers   = 1000
	maxEnv      = 128 << 10
)

// adopt unpacks a source and stores it.
func (s *Store) adopt(ctx context.Context, op string, src *source, o Options, p Progress) (arenero.Image, error) {
	name := o.Name
	if name == "" {
		name = src.name
	}
	if err := checkName(name); err != nil {
		if o.Name == "" {
			return arenero.Image{}, arenero.Errorf(arenero.Invalid, op, "", "the image says no usable name").
				WithHint("give it one with --name")
		}
		return arenero.Image{}, err
	}
	cfg, err := parseConfig(src, o.Platform)
	if err != nil {
		return arenero.Image{}, err
	}
	l, _, err := waitLock(ctx, s.path("locks", fileName(name)), func() { p.step("wait for another job on "+name, 0, 0) })
	if err != nil {
		return arenero.Image{}, err
	}
	defer l.unlock()
	w, err := s.newWork("oci")
	if err != nil {
		return arenero.Image{}, err
	}
	defer w.done()
	t := &tree{path: filepath.Join(w.path, "root"), started: time.Now().Add(-2 * time.Second), user: cfg.Config.User}
	if err := os.Mkdir(t.path, 0o700); err != nil {
		return arenero.Image{}, err
	}
	if err := unpack(ctx, src, cfg, t.path, o.Limits, p); err != nil {
		return arenero.Image{}, err
	}
	t.details.Image = arenero.Image{
		Name: name, Source: src.from, Env: configEnv(cfg.Config.Env),
		Workdir: configDir(cfg.Config.WorkingDir),
		Start:   append(append([]string{}, cfg.Config.Entrypoint...), cfg.Config.Cmd...),
	}
	return s.seal(ctx, w, t, p)
}

// parseConfig reads the config of an image and checks that it can run here.
func parseConfig(src *source, platform string) (*v1.ConfigFile, error) {
	const op = "read image config"
	if len(src.config) > maxDocument {
		return nil, arenero.Errorf(arenero.TooLarge, op, "", "over %d bytes", maxDocument)
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(src.config))
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "%w", err)
	}
	want, err := parsePlatform(platform)
	if err != nil {
		return nil, err
	}
	if cfg.OS != "" && cfg.OS != want.OS || cfg.Architecture != "" && cfg.Architecture != want.Architecture {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "it is for %.40q, not for %s", cfg.OS+"/"+cfg.Architecture, want)
	}
	if len(src.layers) != len(cfg.RootFS.DiffIDs) || len(src.layers) > maxLayers {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "%d layers, %d digests of layers", len(src.layers), len(cfg.RootFS.DiffIDs))
	}
	for _, a := range append(append([]string{}, cfg.Config.Entrypoint...), cfg.Config.Cmd...) {
		if strings.ContainsRune(a, 0) {
			return nil, arenero.Errorf(arenero.Invalid, op, "", "its command holds a NUL byte")
		}
	}
	return cfg, nil
}

// configEnv takes over the variables of an image; what is not one is left out.
func configEnv(list []string) map[string]string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	room := maxEnv
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		room -= len(kv)
		if ok && room >= 0 && envRE.MatchString(k) && !strings.ContainsRune(v, 0) {
			env[k] = v
		}
	}
	return env
}

// configDir takes over the working directory; the root is none.
func configDir(dir string) string {
	dir = path.Clean("/" + dir)
	if dir == "/" || !cleanAbs(dir) {
		return ""
	}
	return dir
}

// unpack lays the layers of a source one above the other in the folder dir.
func unpack(ctx context.Context, src *source, cfg *v1.ConfigFile, dir string, l Limits, p Progress) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	x := newExtractor(root, l)
	var total int64
	for _, la := range src.layers {
		total += la.size
	}
	count := &counter{ctx: ctx, tell: func(n int64) { p.step("unpack layers", n, total) }}
	for i, la := range src.layers {
		if err := unpackLayer(ctx, x, la, count, cfg.RootFS.DiffIDs[i]); err != nil {
			return err
		}
	}
	return nil
}

func unpackLayer(ctx context.Context, x *extractor, la layer, count *counter, want v1.Hash) error {
	rc, err := la.open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	count.r = rc
	plain, err := decompress(count)
	if err != nil {
		return err
	}
	defer plain.Close()
	// All of the stream is hashed, also what follows the end of the archive; the
	// bound is over what entries may hold, so only a bomb meets it.
	sum := sha256.New()
	bounded := &bound{r: plain, left: x.left.Bytes + x.left.Bytes/4 + 64<<20}
	all := io.TeeReader(bounded, sum)
	if err := x.layer(ctx, all); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return err
	}
	return checkSum(sum, want)
}

func checkSum(sum hash.Hash, want v1.Hash) error {
	if got := hex.EncodeToString(sum.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return arenero.Errorf(arenero.Invalid, "check digest", "", "the bytes are sha256:%s, must be %s", got, want)
	}
	return nil
}

// decompress finds out how a stream is compressed by its first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, hostile("gzip: %w", err)
		}
		return z, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, hostile("zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// A counter tells how much was read, and stops when its context ends.
type counter struct {
	ctx  context.Context
	r    io.Reader
	n    int64
	told int64
	tell func(int64)
}

func (c *counter) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.n += int64(n)
	if c.n-c.told > 256<<10 || errors.Is(err, io.EOF) {
		c.told = c.n
		c.tell(c.n)
	}
	return n, err
}

// A bound fails, rather than ends, when a stream is longer than it may be.
type bound struct {
	r    io.Reader
	left int64
}

func (b *bound) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, arenero.Errorf(arenero.TooLarge, opExtract, "", "the image is too large when unpacked")
	}
	return n, err
}
