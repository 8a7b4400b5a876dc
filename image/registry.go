package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/arenero/arenero"
)

// Pull takes an image from a registry: "python:3.12-slim",
// "ghcr.io/x/y@sha256:...". A reference with a digest gets exactly those bytes.
// Credentials are those of "docker login".
//
// Errors: Invalid (reference, or the image itself), NotFound, Denied, TooLarge,
// Unavailable (the registry), Exhausted, Canceled. None of them leaves anything.
func (s *Store) Pull(ctx context.Context, ref string, o Options, p Progress) (arenero.Image, error) {
	const op = "pull image"
	r, err := name.ParseReference(ref)
	if err != nil {
		return arenero.Image{}, arenero.Errorf(arenero.Invalid, op, "", "%q is not a reference to an image", clip(ref)).
			WithHint("for example: python:3.12-slim, ghcr.io/owner/name@sha256:...")
	}
	want, err := parsePlatform(o.Platform)
	if err != nil {
		return arenero.Image{}, err
	}
	p.step("ask "+r.Context().RegistryStr(), 0, 0)
	img, err := remote.Image(r, remote.WithContext(ctx), remote.WithPlatform(*want), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return arenero.Image{}, pullError(op, ref, err)
	}
	src, err := remoteSource(r, img)
	if err != nil {
		return arenero.Image{}, pullError(op, ref, err)
	}
	out, err := s.adopt(ctx, op, src, o, p)
	if err != nil {
		return arenero.Image{}, pullError(op, ref, err)
	}
	return out, nil
}

// remoteSource reads the documents of a remote image; the library has checked
// them against their digests.
func remoteSource(r name.Reference, img v1.Image) (*source, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if m.Config.Size > maxDocument || len(m.Layers) > maxLayers {
		return nil, arenero.Errorf(arenero.TooLarge, "read manifest", "", "%d layers, a config of %d bytes", len(m.Layers), m.Config.Size)
	}
	src := &source{from: r.Context().Name() + "@" + digest.String(), name: localName(r)}
	if src.config, err = img.RawConfigFile(); err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for i, l := range layers {
		src.layers = append(src.layers, layer{
			size: max(m.Layers[i].Size, 0),
			open: func(context.Context) (io.ReadCloser, error) { return l.Compressed() },
		})
	}
	return src, nil
}

// localName is what a pulled image is called: as in the reference, without what
// everybody leaves out.
func localName(r name.Reference) string {
	repo := r.Context().RepositoryStr()
	if reg := r.Context().RegistryStr(); reg != name.DefaultRegistry {
		repo = strings.ReplaceAll(reg, ":", "-") + "/" + repo
	} else {
		repo = strings.TrimPrefix(repo, "library/")
	}
	tag := r.Identifier()
	if alg, hex, ok := strings.Cut(tag, ":"); ok && len(hex) > 12 {
		tag = alg + "-" + hex[:12]
	}
	return repo + ":" + tag
}

// parsePlatform reads "linux/amd64"; "" is this machine's processor.
func parsePlatform(s string) (*v1.Platform, error) {
	if s == "" {
		return &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS != "linux" || p.Architecture == "" {
		return nil, arenero.Errorf(arenero.Invalid, "check platform", "", "%q is not a platform", clip(s)).WithHint("for example: linux/amd64")
	}
	return p, nil
}

// clip keeps what a caller sent short in a message.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

// pullError turns what a registry said into one of our codes.
func pullError(op, ref string, err error) error {
	var own *arenero.Error
	var t *transport.Error
	switch {
	case errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fail(op, clip(ref), err)
	case errors.As(err, &t):
		switch t.StatusCode {
		case http.StatusNotFound:
			return arenero.Errorf(arenero.NotFound, op, clip(ref), "the registry has no such image")
		case http.StatusUnauthorized, http.StatusForbidden:
			return arenero.Errorf(arenero.Denied, op, clip(ref), "the registry refuses it: %s", clean(t.Error(), 1)).
				WithHint("check the name, and log in with docker login if it is private")
		case http.StatusTooManyRequests:
			return arenero.Errorf(arenero.Unavailable, op, clip(ref), "the registry limits the rate").WithHint("log in, or try later")
		}
		return arenero.Errorf(arenero.Unavailable, op, clip(ref), "the registry fails: %s", clean(t.Error(), 1))
	}
	if e := fail(op, clip(ref), err); arenero.CodeOf(e) != arenero.Internal {
		return e
	}
	return arenero.Errorf(arenero.Unavailable, op, clip(ref), "%s", clean(err.Error(), 1)).
		WithHint("check that this machine reaches the registry")
}
