package dial

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"time"

	"connectrpc.com/connect"

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
	res, err := call(ctx, "stat", g.api.Stat, &wire.StatRequest{User: user, Path: []byte(path)})
	if err != nil {
		return arenero.FileInfo{}, err
	}
	return fileInfo(res.GetInfo()), nil
}

// ReadDir implements [arenero.Files].
func (g *Guest) ReadDir(ctx context.Context, user, path string, depth int) ([]arenero.FileInfo, error) {
	const op = "read folder"
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
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
	const op = "read file"
	ctx, cancel := context.WithCancel(ctx)
	st, err := g.api.ReadFile(ctx, &wire.ReadFileRequest{User: user, Path: []byte(path), Offset: offset, Size: size})
	if err != nil {
		cancel()
		return nil, arenero.FileInfo{}, wire.FromWire(op, err)
	}
	r := &fileReader{st: st, cancel: cancel, left: size}
	late := time.AfterFunc(callTimeout, cancel)
	answered := st.Receive()
	if !late.Stop() || !answered {
		err := wire.FromWire(op, st.Err())
		if err == nil {
			err = broken(op, "no answer")
		}
		_ = r.Close() // the first error says more
		return nil, arenero.FileInfo{}, err
	}
	if err := r.take(); err != nil {
		_ = r.Close() // the first error says more
		return nil, arenero.FileInfo{}, err
	}
	return r, fileInfo(st.Msg().GetInfo()), nil
}

type fileReader struct {
	st     *connect.ServerStreamForClient[wire.ReadFileResponse]
	cancel context.CancelFunc
	rest   []byte
	left   int64 // what may still come; < 0: all there is
}

// take takes the data of a message. The guest may not send more than was asked for.
func (r *fileReader) take() error {
	r.rest = r.st.Msg().GetData()
	if r.left < 0 {
		return nil
	}
	if int64(len(r.rest)) > r.left {
		return broken("read file", "more bytes than were asked for")
	}
	r.left -= int64(len(r.rest))
	return nil
}

func (r *fileReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.st.Receive() {
			if err := wire.FromWire("read file", r.st.Err()); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		if err := r.take(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// WriteTo spares a copy.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		n, err := w.Write(r.rest)
		total += int64(n)
		if err != nil {
			return total, err
		}
		if !r.st.Receive() {
			return total, wire.FromWire("read file", r.st.Err())
		}
		if err := r.take(); err != nil {
			return total, err
		}
	}
}

func (r *fileReader) Close() error {
	r.cancel()
	_ = r.st.Close() // cancelled: it can not say anything new
	return nil
}

// WriteFile implements [arenero.Files].
func (g *Guest) WriteFile(ctx context.Context, user, path string, mode fs.FileMode, src io.Reader) (arenero.FileInfo, error) {
	const op = "write file"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := g.api.WriteFile(ctx)
	if err != nil {
		return arenero.FileInfo{}, wire.FromWire(op, err)
	}
	err = st.Send(&wire.WriteFileRequest{Start: &wire.WriteFileStart{User: user, Path: []byte(path), Mode: uint32(mode)}})
	if buf := make([]byte, maxPiece); err == nil {
		err = sendAll(ctx, st, src, buf)
	}
	if source, ok := errors.AsType[*sourceError](err); ok {
		over := ctx.Err()
		// Without the last word nothing appears under the name.
		cancel()
		_, _ = st.CloseAndReceive()
		if over != nil {
			return arenero.FileInfo{}, wire.FromWire(op, over)
		}
		return arenero.FileInfo{}, arenero.Errorf(arenero.Invalid, op, "", "read what is to be written: %w", source.error)
	}
	// After a failed send the answer says why.
	res, rerr := st.CloseAndReceive()
	if rerr != nil {
		return arenero.FileInfo{}, wire.FromWire(op, rerr)
	}
	if err != nil {
		return arenero.FileInfo{}, wire.FromWire(op, err)
	}
	return fileInfo(res.GetInfo()), nil
}

// A sourceError is the caller's own reader's.
type sourceError struct{ error }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// sendAll sends a source to its end. It looks at ctx before each read: a source that
// comes in drops would else be read on for as long as a whole message takes to fill.
func sendAll(ctx context.Context, st *connect.ClientStreamForClientSimple[wire.WriteFileRequest, wire.StatResponse], src io.Reader, buf []byte) error {
	living := readerFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return src.Read(b)
	})
	for {
		n, err := io.ReadFull(living, buf)
		if n > 0 {
			if err := st.Send(&wire.WriteFileRequest{Data: buf[:n]}); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return st.Send(&wire.WriteFileRequest{Done: true})
		case err != nil:
			return &sourceError{err}
		}
	}
}

// MakeDir implements [arenero.Files].
func (g *Guest) MakeDir(ctx context.Context, user, path string, mode fs.FileMode) error {
	_, err := call(ctx, "make folder", g.api.MakeDir, &wire.MakeDirRequest{User: user, Path: []byte(path), Mode: uint32(mode)})
	return err
}

// Move implements [arenero.Files].
func (g *Guest) Move(ctx context.Context, user, from, to string) error {
	_, err := call(ctx, "move", g.api.Move, &wire.MoveRequest{User: user, From: []byte(from), To: []byte(to)})
	return err
}

// Remove implements [arenero.Files].
func (g *Guest) Remove(ctx context.Context, user, path string) error {
	_, err := call(ctx, "remove", g.api.Remove, &wire.RemoveRequest{User: user, Path: []byte(path)})
	return err
}

// Chmod implements [arenero.Files].
func (g *Guest) Chmod(ctx context.Context, user, path string, mode fs.FileMode) error {
	_, err := call(ctx, "change mode", g.api.Chmod, &wire.ChmodRequest{User: user, Path: []byte(path), Mode: uint32(mode)})
	return err
}

// Watch implements [arenero.Files].
func (g *Guest) Watch(ctx context.Context, user, path string, recursive bool) (<-chan arenero.FileEvent, error) {
	const op = "watch"
	ctx, cancel := context.WithCancel(ctx)
	st, err := g.api.Watch(ctx, &wire.WatchRequest{User: user, Path: []byte(path), Recursive: recursive})
	if err != nil {
		cancel()
		return nil, wire.FromWire(op, err)
	}
	if !st.Receive() { // the first response says that the watch is set
		err := wire.FromWire(op, st.Err())
		if err == nil {
			err = broken(op, "no answer")
		}
		cancel()
		_ = st.Close() // the first error says more
		return nil, err
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
