package dial

import (
	"context"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

const maxPath = 16 << 10

// fileInfo takes a description over. A file name inside need not be UTF-8; its bytes
// stay as they are, so that the file can be asked for by the name that was listed.
func fileInfo(f *wire.FileInfo) arenero.FileInfo {
	name := string(head(f.GetPath(), maxPath))
	return arenero.FileInfo{
		Path: name, Name: path.Base(name), Size: max(f.GetSize(), 0), Mode: fs.FileMode(f.GetMode()),
		Modified: moment(f.GetModifiedUnixNanos()), Owner: text(f.GetOwner(), 64), Group: text(f.GetGroup(), 64),
		Link: string(head(f.GetLink(), maxPath)),
	}
}

// Stat implements [arenero.Files].
func (g *Guest) Stat(ctx context.Context, user, path string) (arenero.FileInfo, error) {
	res, err := call(ctx, g, "stat", g.api.Stat, &wire.StatRequest{User: user, Path: []byte(path)})
	if err != nil {
		return arenero.FileInfo{}, err
	}
	return fileInfo(res.GetInfo()), nil
}

// ReadDir implements [arenero.Files].
func (g *Guest) ReadDir(ctx context.Context, user, path string, depth int) ([]arenero.FileInfo, error) {
	const op = "read folder"
	ctx, cancel := context.WithTimeout(ctx, 2*g.limit)
	defer cancel()
	st, err := g.api.ReadDir(ctx, &wire.ReadDirRequest{User: user, Path: []byte(path), Depth: int32(within(int64(depth), 1, 1<<20))})
	if err != nil {
		return nil, wire.FromWire(op, err)
	}
	defer st.Close()
	list := []arenero.FileInfo{}
	for st.Receive() {
		for _, e := range st.Msg().GetEntries() {
			if len(list) == arenero.MaxEntries {
				return nil, arenero.Errorf(arenero.TooLarge, op, "", "more than %d entries", arenero.MaxEntries).
					WithHint("list a deeper folder, or with less depth")
			}
			list = append(list, fileInfo(e))
		}
	}
	return list, wire.FromWire(op, st.Err())
}

// ReadFile implements [arenero.Files].
func (g *Guest) ReadFile(ctx context.Context, user, path string, offset, size int64) (io.ReadCloser, arenero.FileInfo, error) {
	req := &wire.ReadFileRequest{User: user, Path: []byte(path), Offset: offset, Size: size}
	r, err := startDownload[wire.ReadFileRequest, wire.ReadFileResponse](ctx, g.limit, "read file", g.api.ReadFile, req, size)
	if err != nil {
		return nil, arenero.FileInfo{}, err
	}
	return r, fileInfo(r.st.Msg().GetInfo()), nil
}

// WriteFile implements [arenero.Files].
func (g *Guest) WriteFile(ctx context.Context, user, path string, mode fs.FileMode, src io.Reader) (arenero.FileInfo, error) {
	res, err := upload[wire.WriteFileRequest, wire.StatResponse]{
		op: "write file", limit: g.limit, open: g.api.WriteFile,
		first: &wire.WriteFileRequest{Start: &wire.WriteFileStart{User: user, Path: []byte(path), Mode: uint32(mode)}},
		piece: func(b []byte) *wire.WriteFileRequest { return &wire.WriteFileRequest{Data: b} },
		done:  &wire.WriteFileRequest{Done: true},
	}.send(ctx, src)
	if err != nil {
		return arenero.FileInfo{}, err
	}
	return fileInfo(res.GetInfo()), nil
}

// ReadTree implements [arenero.Files].
func (g *Guest) ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error) {
	req := &wire.ReadTreeRequest{User: user, Path: []byte(path)}
	r, err := startDownload[wire.ReadTreeRequest, wire.ReadTreeResponse](ctx, g.limit, "read tree", g.api.ReadTree, req, -1)
	if err != nil {
		return nil, err // not a nil *download
	}
	return r, nil
}

// WriteTree implements [arenero.Files].
func (g *Guest) WriteTree(ctx context.Context, user, path string, src io.Reader) (arenero.TreeInfo, error) {
	res, err := upload[wire.WriteTreeRequest, wire.WriteTreeResponse]{
		op: "write tree", limit: g.limit, open: g.api.WriteTree,
		first: &wire.WriteTreeRequest{Start: &wire.WriteTreeStart{User: user, Path: []byte(path)}},
		piece: func(b []byte) *wire.WriteTreeRequest { return &wire.WriteTreeRequest{Data: b} },
		done:  &wire.WriteTreeRequest{Done: true},
	}.send(ctx, src)
	if err != nil {
		return arenero.TreeInfo{}, err
	}
	return arenero.TreeInfo{Files: within(res.GetFiles(), 0, arenero.MaxTreeEntries), Bytes: max(res.GetBytes(), 0)}, nil
}

// MakeDir implements [arenero.Files].
func (g *Guest) MakeDir(ctx context.Context, user, path string, mode fs.FileMode) error {
	_, err := call(ctx, g, "make folder", g.api.MakeDir, &wire.MakeDirRequest{User: user, Path: []byte(path), Mode: uint32(mode)})
	return err
}

// Move implements [arenero.Files].
func (g *Guest) Move(ctx context.Context, user, from, to string) error {
	_, err := call(ctx, g, "move", g.api.Move, &wire.MoveRequest{User: user, From: []byte(from), To: []byte(to)})
	return err
}

// Remove implements [arenero.Files].
func (g *Guest) Remove(ctx context.Context, user, path string) error {
	_, err := call(ctx, g, "remove", g.api.Remove, &wire.RemoveRequest{User: user, Path: []byte(path)})
	return err
}

// Chmod implements [arenero.Files].
func (g *Guest) Chmod(ctx context.Context, user, path string, mode fs.FileMode) error {
	_, err := call(ctx, g, "change mode", g.api.Chmod, &wire.ChmodRequest{User: user, Path: []byte(path), Mode: uint32(mode)})
	return err
}

// Watch implements [arenero.Files].
func (g *Guest) Watch(ctx context.Context, user, path string, recursive bool) (<-chan arenero.FileEvent, error) {
	const op = "watch"
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(g.limit, cancel)
	st, err := g.api.Watch(ctx, &wire.WatchRequest{User: user, Path: []byte(path), Recursive: recursive})
	if err == nil && !st.Receive() { // the first response says that the watch is set
		if err = st.Err(); err == nil {
			err = broken(op, "no answer")
		}
		_ = st.Close() // the first error says more
	}
	if !late.Stop() {
		err = silent(op)
	}
	if err != nil {
		cancel()
		return nil, wire.FromWire(op, err)
	}
	events := make(chan arenero.FileEvent, 64)
	go func() { // ends with ctx; joined by the closing of events
		defer close(events)
		defer cancel()
		defer st.Close()
		lost := 0
		for st.Receive() {
			m := st.Msg()
			ev := arenero.FileEvent{
				Path: string(head(m.GetPath(), maxPath)), Op: text(m.GetOp(), 16), Dropped: within(int64(m.GetDropped()), 0, 1<<30) + lost,
			}
			if !knownOp(ev.Op) {
				return
			}
			select {
			case events <- ev:
				lost = 0
			default: // the reader is slow
				lost = min(ev.Dropped+1, 1<<30)
			}
		}
	}()
	return events, nil
}

func knownOp(op string) bool {
	switch op {
	case "create", "write", "remove", "rename", "chmod":
		return true
	}
	return false
}
