package rest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strconv"
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

// readFile streams a file.
func (d *Door) readFile(ctx context.Context, in *ByPath) (*huma.StreamResponse, error) {
	g, err := d.filesOf(ctx, in)
	if err != nil {
		return nil, err
	}
	r, info, err := g.ReadFile(ctx, in.User, in.Path, 0, -1)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer r.Close()
		w := askerOf(ctx).w
		h := w.Header()
		// Never a type that a browser would run, and never in our origin.
		h.Set("Content-Type", "application/octet-stream")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Disposition", "attachment")
		h.Set("Cache-Control", "no-store")
		if info.Size > 0 { // some files, as in /proc, do not tell
			h.Set("Content-Length", strconv.FormatInt(info.Size, 10))
		}
		h.Set("Last-Modified", info.Modified.UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusOK)
		if _, err := io.Copy(&patientWriter{w: w, rc: http.NewResponseController(w)}, r); err != nil {
			panic(http.ErrAbortHandler) // a broken answer must not look whole
		}
	}}, nil
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

	Mode string `query:"mode" maxLength:"4" pattern:"^[0-7]{1,4}$" default:"644" doc:"Permissions, octal"`
}

type fileResponse struct {
	Body arenero.FileInfo
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
	info, err := g.WriteFile(ctx, in.User, in.Path, fs.FileMode(mode), body)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, arenero.Errorf(arenero.TooLarge, "write file", "", "more than %d bytes", int64(maxFile))
	}
	if err != nil {
		return nil, err
	}
	return &fileResponse{Body: info}, nil
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
