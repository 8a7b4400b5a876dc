package client

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

	"github.com/arenero/arenero"
)

// Progress is told, now and then, how many bytes have gone through, and of how
// many; total is -1 when that is not known.
type Progress func(done, total int64)

const octets = "application/octet-stream"

func (s *Sandbox) file(rest, path string) string {
	return s.path("/files") + rest + "?path=" + url.QueryEscape(path)
}

// ReadFile opens a file of the sandbox; the caller closes it. Reading fails at the
// end if what came is not what the server sent.
func (s *Sandbox) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	f, err := s.OpenFile(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// A File is a file of a sandbox that is being read.
type File struct {
	Size int64 // as the sandbox says; -1 when it does not

	ctx    context.Context
	resp   *http.Response
	sum    hash.Hash
	done   int64
	report Progress
}

// OpenFile is ReadFile that tells the size, and of progress, if it is not nil.
func (s *Sandbox) OpenFile(ctx context.Context, path string, report Progress) (*File, error) {
	resp, err := s.c.get(ctx, "read file", s.file("", path), octets) //nolint:bodyclose // File.Close does
	if err != nil {
		return nil, err
	}
	f := &File{Size: resp.ContentLength, ctx: ctx, resp: resp, sum: sha256.New(), report: report}
	if n, err := strconv.ParseInt(resp.Header.Get("Arenero-Size"), 10, 64); err == nil && n >= 0 {
		f.Size = n
	}
	return f, nil
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.resp.Body.Read(p)
	f.sum.Write(p[:n])
	f.done += int64(n)
	if f.report != nil {
		f.report(f.done, f.Size)
	}
	switch {
	case errors.Is(err, io.EOF):
		if want := f.resp.Trailer.Get("Content-Digest"); want != "" && want != digest(f.sum) {
			return n, arenero.Errorf(arenero.Unavailable, "read file", "", "what came is not what was sent: the digests differ")
		}
		return n, io.EOF
	case err != nil:
		return n, broken(f.ctx, "read file", err)
	}
	return n, nil
}

// Close ends the reading.
func (f *File) Close() error { return f.resp.Body.Close() }

// digest writes a SHA-256 as RFC 9530 has it.
func digest(h hash.Hash) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(h.Sum(nil)) + ":"
}

// ReadRange reads size bytes of a file from offset, or what there is of them.
func (s *Sandbox) ReadRange(ctx context.Context, path string, offset, size int64) ([]byte, error) {
	const op = "read file"
	if offset < 0 || size <= 0 || size > maxAnswer {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "offset is %d and size %d; size is at most %d", offset, size, maxAnswer)
	}
	header := http.Header{"Range": {"bytes=" + strconv.FormatInt(offset, 10) + "-" + strconv.FormatInt(offset+size-1, 10)}}
	resp, err := s.c.send(ctx, request{op: op, method: http.MethodGet, path: s.file("", path), takes: octets, header: header})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "the server does not know ranges")
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, size))
	if err != nil {
		return nil, broken(ctx, op, err)
	}
	return b, nil
}

// WriteFile replaces a file by what r gives, making parent folders. The file
// appears when it is whole. If r can seek, its digest is sent along and checked
// before the file appears; in any case the digest of what was written is compared
// with that of what was read.
func (s *Sandbox) WriteFile(ctx context.Context, path string, mode fs.FileMode, r io.Reader) error {
	_, err := s.Upload(ctx, path, mode, r, nil)
	return err
}

// Upload is WriteFile that tells what was written, and of progress, if report is
// not nil.
func (s *Sandbox) Upload(ctx context.Context, path string, mode fs.FileMode, r io.Reader, report Progress) (arenero.FileInfo, error) {
	const op = "write file"
	var info arenero.FileInfo
	header, total, err := announce(op, r)
	if err != nil {
		return info, err
	}
	up := &upload{r: r, sum: sha256.New(), total: total, report: report}
	resp, err := s.c.send(ctx, request{
		op: op, method: http.MethodPut, gives: octets, body: up, length: total, header: header,
		path: s.file("", path) + "&mode=" + strconv.FormatUint(uint64(mode.Perm()), 8),
	})
	if err != nil {
		if up.err != nil { // it was our side that failed
			return info, arenero.Errorf(arenero.Invalid, op, "", "read what to send: %w", up.err)
		}
		return info, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&info); err != nil {
		return info, broken(ctx, op, err)
	}
	if got := resp.Header.Get("Content-Digest"); got != "" && got != digest(up.sum) {
		return info, arenero.Errorf(arenero.Unavailable, op, "", "what was written is not what was sent: the digests differ")
	}
	return info, nil
}

// announce finds out the size and the digest of what can be read twice.
func announce(op string, r io.Reader) (http.Header, int64, error) {
	seeker, ok := r.(io.ReadSeeker)
	if !ok {
		return nil, -1, nil
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, -1, nil //nolint:nilerr // a pipe: it seems to seek and does not
	}
	sum := sha256.New()
	n, err := io.Copy(sum, seeker)
	if err == nil {
		_, err = seeker.Seek(start, io.SeekStart)
	}
	if err != nil {
		return nil, -1, arenero.Errorf(arenero.Invalid, op, "", "read what to send: %w", err)
	}
	return http.Header{"Content-Digest": {digest(sum)}}, n, nil
}

type upload struct {
	r      io.Reader
	sum    hash.Hash
	done   int64
	total  int64
	report Progress
	err    error
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.sum.Write(p[:n])
	u.done += int64(n)
	if u.report != nil {
		u.report(u.done, u.total)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

// RemoveFile removes a file, or a folder with all that is in it.
func (s *Sandbox) RemoveFile(ctx context.Context, path string) error {
	return s.c.call(ctx, "remove file", "DELETE", s.file("", path), nil, nil)
}

// ListFiles lists a folder down to depth; 1 is the folder itself.
func (s *Sandbox) ListFiles(ctx context.Context, path string, depth int) ([]arenero.FileInfo, error) {
	var out struct {
		Entries []arenero.FileInfo `json:"entries"`
	}
	err := s.c.call(ctx, "list files", "GET", s.file("/list", path)+"&depth="+strconv.Itoa(depth), nil, &out)
	return out.Entries, err
}

// Stat tells what is known of a file.
func (s *Sandbox) Stat(ctx context.Context, path string) (arenero.FileInfo, error) {
	var out arenero.FileInfo
	err := s.c.call(ctx, "stat file", "GET", s.file("/stat", path), nil, &out)
	return out, err
}

type location struct {
	Path string `json:"path"`
	Mode string `json:"mode,omitempty"`
}

// MakeDir makes a folder and those above it.
func (s *Sandbox) MakeDir(ctx context.Context, path string) error {
	return s.c.call(ctx, "make folder", "POST", s.path("/files/mkdir"), location{Path: path}, nil)
}

// Chmod changes permissions.
func (s *Sandbox) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return s.c.call(ctx, "change mode", "POST", s.path("/files/chmod"),
		location{path, strconv.FormatUint(uint64(mode.Perm()), 8)}, nil)
}

// Move moves or renames a file or a folder.
func (s *Sandbox) Move(ctx context.Context, from, to string) error {
	return s.c.call(ctx, "move file", "POST", s.path("/files/move"), map[string]string{"from": from, "to": to}, nil)
}
