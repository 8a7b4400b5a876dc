package rest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// maxFile bounds one upload; the sandbox's disk bounds it before, as a rule.
const maxFile = 5 << 30

// ByPath is the part of a request that names a file.
type ByPath struct {
	ByID

	Path string `query:"path" required:"true" maxLength:"4096" doc:"Absolute, or relative to the work directory"`
	User string `query:"user" maxLength:"64" doc:"With whose rights; the sandbox's user if left out"`
}

func (d *Door) filesOf(ctx context.Context, in *ByPath) (arenero.Guest, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, err
	}
	return d.guest(ctx, in.ID, host.ScopeRun)
}

type readRequest struct {
	ByPath

	Range string `header:"Range" doc:"One range of bytes, as bytes=0-99"`
}

// readFile streams a file or a part of it. A whole one ends with its digest, in a
// trailer (RFC 9530).
func (d *Door) readFile(ctx context.Context, in *readRequest) (*huma.StreamResponse, error) {
	g, err := d.filesOf(ctx, &in.ByPath)
	if err != nil {
		return nil, err
	}
	offset, size, status := int64(0), int64(-1), http.StatusOK
	var total int64
	if in.Range != "" {
		info, err := g.Stat(ctx, in.User, in.Path)
		if err != nil {
			return nil, err
		}
		total = info.Size
		var ok bool
		if offset, size, ok = rangeOf(in.Range, total); !ok {
			return nil, huma.ErrorWithHeaders(&Problem{
				Title: title(http.StatusRequestedRangeNotSatisfiable), Status: http.StatusRequestedRangeNotSatisfiable, Code: arenero.Invalid,
				Detail: fmt.Sprintf("read file: it has %d bytes, and no such range", total), Hint: "ask for one range, as bytes=0-99",
			}, http.Header{"Content-Range": {fmt.Sprintf("bytes */%d", total)}})
		}
		status = http.StatusPartialContent
	}
	r, info, err := g.ReadFile(ctx, in.User, in.Path, offset, size)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer r.Close()
		a := askerOf(ctx)
		h := a.w.Header()
		h.Set("Accept-Ranges", "bytes")
		h.Set("Last-Modified", info.Modified.UTC().Format(http.TimeFormat))
		length := info.Size
		if status == http.StatusPartialContent {
			length = size
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+size-1, total))
			copyOut(a, r, status, length)
			return
		}
		sum := sha256.New()
		h.Set("Trailer", "Content-Digest")
		copyOut(a, io.TeeReader(r, sum), status, length)
		h.Set("Content-Digest", digestOf(sum.Sum(nil)))
	}}, nil
}

// rangeOf reads a range of bytes (RFC 9110, 14.1.2), of the one form with a single
// range.
func rangeOf(s string, total int64) (offset, size int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes=")
	from, to, both := strings.Cut(s, "-")
	if !ok || !both || strings.Contains(s, ",") {
		return 0, 0, false
	}
	if from == "" { // the last bytes
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil || n <= 0 || total == 0 {
			return 0, 0, false
		}
		n = min(n, total)
		return total - n, n, true
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil || first < 0 || first >= total {
		return 0, 0, false
	}
	last := total - 1
	if to != "" {
		if last, err = strconv.ParseInt(to, 10, 64); err != nil || last < first {
			return 0, 0, false
		}
	}
	return first, min(last, total-1) - first + 1, true
}

// digestOf writes a digest as RFC 9530 has it.
func digestOf(sha []byte) string { return "sha-256=:" + base64.StdEncoding.EncodeToString(sha) + ":" }

// download sends bytes that no browser should run, and never in our origin.
func download(a *asker, r io.Reader, size int64) { copyOut(a, r, http.StatusOK, size) }

func copyOut(a *asker, r io.Reader, status int, size int64) {
	h := a.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment")
	h.Set("Cache-Control", "no-store")
	if size > 0 && h.Get("Trailer") == "" { // a length leaves no room for trailers; some files, as in /proc, have none
		h.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if size > 0 {
		h.Set("Arenero-Size", strconv.FormatInt(size, 10))
	}
	a.w.WriteHeader(status)
	if _, err := io.CopyBuffer(&patientWriter{w: a.w, rc: http.NewResponseController(a.w)}, struct{ io.Reader }{r}, make([]byte, 256<<10)); err != nil {
		panic(http.ErrAbortHandler) // a broken answer must not look whole
	}
}

// patientWriter gives the client a time for each piece instead of one for all.
type patientWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (p *patientWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have none
	return p.w.Write(b)
}

// patientReader does the same for a body.
type patientReader struct {
	r  io.Reader
	rc *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(writeTimeout)) // some readers have none
	n, err := p.r.Read(b)
	if err != nil {
		_ = p.rc.SetReadDeadline(time.Time{}) // the connection goes on
	}
	return n, err
}

type writeRequest struct {
	ByPath

	Digest string `header:"Content-Digest" maxLength:"1024" doc:"sha-256=:BASE64: of the body; a body of another digest is not written"`

	Mode string `query:"mode" maxLength:"4" pattern:"^[0-7]{1,4}$" default:"644" doc:"Permissions, octal"`
}

type fileResponse struct {
	Digest string `header:"Content-Digest"`
	Body   arenero.FileInfo
}

// writeFile streams the body into a file, which appears when it is whole.
func (d *Door) writeFile(ctx context.Context, in *writeRequest) (*fileResponse, error) {
	mode, err := strconv.ParseUint(in.Mode, 8, 12)
	if err != nil || mode > 0o777 {
		return nil, arenero.Errorf(arenero.Invalid, "write file", "", "mode is %s, must be octal, at most 777", in.Mode)
	}
	g, err := d.filesOf(ctx, &in.ByPath)
	if err != nil {
		return nil, err
	}
	a := askerOf(ctx)
	rc := http.NewResponseController(a.w)
	body := &patientReader{r: http.MaxBytesReader(a.w, a.r.Body, maxFile), rc: rc}
	sum := &summed{r: body, h: sha256.New()}
	if in.Digest != "" {
		if sum.want, err = wantedDigest(in.Digest); err != nil {
			return nil, err
		}
	}
	info, err := g.WriteFile(ctx, in.User, in.Path, fs.FileMode(mode), sum)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, arenero.Errorf(arenero.TooLarge, "write file", "", "more than %d bytes", int64(maxFile))
	}
	if err != nil {
		return nil, err
	}
	return &fileResponse{Digest: digestOf(sum.h.Sum(nil)), Body: info}, nil
}

// summed reads a body, and fails at its end when it is not the one that was
// announced: then nothing is written.
type summed struct {
	r    io.Reader
	h    hash.Hash
	want []byte
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.h.Write(p[:n])
	if errors.Is(err, io.EOF) && s.want != nil && !bytes.Equal(s.h.Sum(nil), s.want) {
		return n, arenero.Errorf(arenero.Invalid, "write file", "", "the body does not have the digest that was announced")
	}
	return n, err
}

// wantedDigest reads the SHA-256 out of a Content-Digest field.
func wantedDigest(field string) ([]byte, error) {
	for part := range strings.SplitSeq(field, ",") {
		b64, ok := strings.CutPrefix(strings.TrimSpace(part), "sha-256=:")
		if !ok {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(b64, ":"))
		if err != nil || len(raw) != sha256.Size {
			return nil, arenero.Errorf(arenero.Invalid, "write file", "", "Content-Digest is not sha-256=:BASE64:")
		}
		return raw, nil
	}
	return nil, nil // of a kind that we do not know: it may be left unchecked
}

func (d *Door) removeFile(ctx context.Context, in *ByPath) (*nothing, error) {
	g, err := d.filesOf(ctx, in)
	if err != nil {
		return nil, err
	}
	return nil, g.Remove(ctx, in.User, in.Path)
}

type listFilesRequest struct {
	ByPath

	Depth int `query:"depth" default:"1" minimum:"1" maximum:"64" doc:"1 is the folder itself"`
}

type listFilesResponse struct {
	Body struct {
		Entries []arenero.FileInfo `json:"entries"`
	}
}

func (d *Door) listFiles(ctx context.Context, in *listFilesRequest) (*listFilesResponse, error) {
	g, err := d.filesOf(ctx, &in.ByPath)
	if err != nil {
		return nil, err
	}
	all, err := g.ReadDir(ctx, in.User, in.Path, in.Depth)
	if err != nil {
		return nil, err
	}
	out := &listFilesResponse{}
	out.Body.Entries = append([]arenero.FileInfo{}, all...)
	return out, nil
}
