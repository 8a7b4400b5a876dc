package rest

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
)

func (d *Door) statFile(ctx context.Context, in *ByPath) (*fileResponse, error) {
	g, err := d.filesOf(ctx, in)
	if err != nil {
		return nil, err
	}
	info, err := g.Stat(ctx, in.User, in.Path)
	if err != nil {
		return nil, err
	}
	return &fileResponse{Body: info}, nil
}

type placeBody struct {
	Path string `json:"path" maxLength:"4096" doc:"Absolute, or relative to the work directory"`
	User string `json:"user,omitempty" maxLength:"64" doc:"With whose rights; the sandbox's user if left out"`
	Mode string `json:"mode,omitempty" maxLength:"4" pattern:"^[0-7]{1,4}$" doc:"Permissions, octal"`
}

func (b placeBody) mode(otherwise fs.FileMode) (fs.FileMode, error) {
	if b.Mode == "" {
		return otherwise, nil
	}
	m, err := strconv.ParseUint(b.Mode, 8, 12)
	if err != nil || m > 0o777 {
		return 0, arenero.Errorf(arenero.Invalid, "check mode", "", "mode is %s, must be octal, at most 777", readable(b.Mode, 8))
	}
	return fs.FileMode(m), nil
}

type placeRequest struct {
	ByID

	Body placeBody
}

func (d *Door) makeDir(ctx context.Context, in *placeRequest) (*nothing, error) {
	mode, err := in.Body.mode(0o755)
	if err != nil {
		return nil, err
	}
	g, err := d.filesOf(ctx, &ByPath{ByID: in.ByID, Path: in.Body.Path})
	if err != nil {
		return nil, err
	}
	return nil, g.MakeDir(ctx, in.Body.User, in.Body.Path, mode)
}

func (d *Door) chmodFile(ctx context.Context, in *placeRequest) (*nothing, error) {
	if in.Body.Mode == "" {
		return nil, arenero.Errorf(arenero.Invalid, "change mode", "", "no mode")
	}
	mode, err := in.Body.mode(0)
	if err != nil {
		return nil, err
	}
	g, err := d.filesOf(ctx, &ByPath{ByID: in.ByID, Path: in.Body.Path})
	if err != nil {
		return nil, err
	}
	return nil, g.Chmod(ctx, in.Body.User, in.Body.Path, mode)
}

type moveRequest struct {
	ByID

	Body struct {
		From string `json:"from" maxLength:"4096"`
		To   string `json:"to" maxLength:"4096"`
		User string `json:"user,omitempty" maxLength:"64"`
	}
}

func (d *Door) moveFile(ctx context.Context, in *moveRequest) (*nothing, error) {
	if err := checkPath(in.Body.To); err != nil {
		return nil, err
	}
	g, err := d.filesOf(ctx, &ByPath{ByID: in.ByID, Path: in.Body.From})
	if err != nil {
		return nil, err
	}
	return nil, g.Move(ctx, in.Body.User, in.Body.From, in.Body.To)
}

type watchRequest struct {
	ByPath

	Recursive bool `query:"recursive" doc:"All folders below it too"`
}

// watchFiles sends changes below a folder as they happen.
func (d *Door) watchFiles(ctx context.Context, in *watchRequest) (*huma.StreamResponse, error) {
	g, err := d.filesOf(ctx, &in.ByPath)
	if err != nil {
		return nil, err
	}
	watch, cancel := context.WithCancel(ctx)
	changes, err := g.Watch(watch, in.User, in.Path, in.Recursive)
	if err != nil {
		cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer func() {
			cancel()
			for range changes { // it is closed soon
			}
		}()
		s := openEvents(askerOf(ctx))
		defer s.close()
		if !s.send("ready", struct{}{}) {
			return
		}
		for e := range changes {
			if !s.send("change", e) {
				return
			}
		}
	}}, nil
}

// readTree sends a folder as a tar archive.
func (d *Door) readTree(ctx context.Context, in *ByPath) (*huma.StreamResponse, error) {
	g, err := d.filesOf(ctx, in)
	if err != nil {
		return nil, err
	}
	r, err := g.ReadTree(ctx, in.User, in.Path)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer r.Close()
		download(askerOf(ctx), r, 0)
	}}, nil
}

type treeResponse struct{ Body arenero.TreeInfo }

// writeTree unpacks a tar archive below a folder.
func (d *Door) writeTree(ctx context.Context, in *ByPath) (*treeResponse, error) {
	g, err := d.filesOf(ctx, in)
	if err != nil {
		return nil, err
	}
	a := askerOf(ctx)
	rc := http.NewResponseController(a.w)
	info, err := g.WriteTree(ctx, in.User, in.Path, &patientReader{r: http.MaxBytesReader(a.w, a.r.Body, maxFile), rc: rc})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, arenero.Errorf(arenero.TooLarge, "write folder", "", "more than %d bytes", int64(maxFile))
	}
	if err != nil {
		return nil, err
	}
	return &treeResponse{Body: info}, nil
}
