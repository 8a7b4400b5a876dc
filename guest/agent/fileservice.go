package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// Stat implements the service.
func (s *service) Stat(_ context.Context, req *wire.StatRequest) (*wire.StatResponse, error) {
	info, err := s.a.stat(req.GetUser(), req.GetPath())
	return reply(&wire.StatResponse{Info: info}, err)
}

// ReadDir implements the service.
func (s *service) ReadDir(_ context.Context, req *wire.ReadDirRequest, stream *connect.ServerStream[wire.ReadDirResponse]) error {
	m := req
	return wire.ToWire(s.a.readDir(m.GetUser(), m.GetPath(), int(m.GetDepth()), func(batch []*wire.FileInfo) error {
		return stream.Send(&wire.ReadDirResponse{Entries: batch})
	}))
}

// ReadFile implements the service.
func (s *service) ReadFile(_ context.Context, req *wire.ReadFileRequest, stream *connect.ServerStream[wire.ReadFileResponse]) error {
	const op = "read file"
	m := req
	if m.GetOffset() < 0 {
		return wire.ToWire(arenero.Errorf(arenero.Invalid, op, "", "an offset of %d", m.GetOffset()))
	}
	f, info, err := s.a.openFile(m.GetUser(), m.GetPath())
	if err != nil {
		return wire.ToWire(err)
	}
	defer f.Close()
	if err := stream.Send(&wire.ReadFileResponse{Info: info}); err != nil {
		return err
	}
	if m.GetOffset() > 0 {
		if _, err := f.Seek(m.GetOffset(), io.SeekStart); err != nil {
			return wire.ToWire(fileError(op, f.Name(), err))
		}
	}
	left := m.GetSize()
	buf := make([]byte, wire.MaxData)
	if left >= 0 {
		buf = buf[:min(left, wire.MaxData)]
	}
	for left != 0 {
		if left > 0 {
			buf = buf[:min(left, int64(len(buf)))]
		}
		n, err := f.Read(buf)
		if n > 0 {
			left -= min(int64(n), max(left, 0))
			if err := stream.Send(&wire.ReadFileResponse{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return wire.ToWire(fileError(op, f.Name(), err))
		}
	}
	return nil
}

// WriteFile implements the service.
func (s *service) WriteFile(_ context.Context, stream *connect.ClientStream[wire.WriteFileRequest]) (*wire.StatResponse, error) {
	const op = "write file"
	if !stream.Receive() {
		return nil, noStart(op, stream.Err())
	}
	st := stream.Msg().GetStart()
	if st == nil {
		return nil, noStart(op, nil)
	}
	d, err := s.a.newDraft(st.GetUser(), st.GetPath(), fs.FileMode(st.GetMode()))
	if err != nil {
		return nil, wire.ToWire(err)
	}
	for {
		m := stream.Msg()
		if b := m.GetData(); len(b) > 0 {
			if _, err := d.Write(b); err != nil {
				d.abandon()
				return nil, wire.ToWire(err)
			}
		}
		if m.GetDone() {
			info, err := d.commit()
			return reply(&wire.StatResponse{Info: info}, err)
		}
		if !stream.Receive() {
			d.abandon()
			if err := stream.Err(); err != nil {
				return nil, err
			}
			return nil, wire.ToWire(arenero.Errorf(arenero.Canceled, op, "", "the file ended before it was done"))
		}
	}
}

// ReadTree implements the service.
func (s *service) ReadTree(_ context.Context, req *wire.ReadTreeRequest, stream *connect.ServerStream[wire.ReadTreeResponse]) error {
	t, err := s.a.tree("read tree", req.GetUser(), req.GetPath(), false)
	if err != nil {
		return wire.ToWire(err)
	}
	defer t.close()
	if err := stream.Send(&wire.ReadTreeResponse{}); err != nil {
		return err
	}
	return wire.ToWire(t.pack(writerFunc(func(b []byte) (int, error) {
		return len(b), stream.Send(&wire.ReadTreeResponse{Data: b})
	})))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// WriteTree implements the service.
func (s *service) WriteTree(_ context.Context, stream *connect.ClientStream[wire.WriteTreeRequest]) (*wire.WriteTreeResponse, error) {
	const op = "write tree"
	if !stream.Receive() {
		return nil, noStart(op, stream.Err())
	}
	st := stream.Msg().GetStart()
	if st == nil {
		return nil, noStart(op, nil)
	}
	t, err := s.a.tree(op, st.GetUser(), st.GetPath(), true)
	if err != nil {
		return nil, wire.ToWire(err)
	}
	defer t.close()
	in := &archive{stream: stream}
	info, err := t.unpack(in)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // what is behind the end of the archive, up to the last word
	}
	return reply(&wire.WriteTreeResponse{Files: int64(info.Files), Bytes: info.Bytes}, err)
}

// An archive is the data of an upload. One that was cut off ends in an error.
type archive struct {
	stream *connect.ClientStream[wire.WriteTreeRequest]
	rest   []byte
	done   bool
}

func (r *archive) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.done {
			return 0, io.EOF
		}
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, arenero.Errorf(arenero.Canceled, "write tree", "", "the archive ended before it was done")
		}
		r.rest, r.done = r.stream.Msg().GetData(), r.stream.Msg().GetDone()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func noStart(op string, err error) error {
	if err != nil {
		return err
	}
	return wire.ToWire(arenero.Errorf(arenero.Invalid, op, "", "the first message is not start"))
}

// MakeDir implements the service.
func (s *service) MakeDir(_ context.Context, req *wire.MakeDirRequest) (*wire.MakeDirResponse, error) {
	m := req
	return reply(&wire.MakeDirResponse{}, s.a.makeDir(m.GetUser(), m.GetPath(), fs.FileMode(m.GetMode())))
}

// Move implements the service.
func (s *service) Move(_ context.Context, req *wire.MoveRequest) (*wire.MoveResponse, error) {
	m := req
	return reply(&wire.MoveResponse{}, s.a.move(m.GetUser(), m.GetFrom(), m.GetTo()))
}

// Remove implements the service.
func (s *service) Remove(_ context.Context, req *wire.RemoveRequest) (*wire.RemoveResponse, error) {
	return reply(&wire.RemoveResponse{}, s.a.remove(req.GetUser(), req.GetPath()))
}

// Chmod implements the service.
func (s *service) Chmod(_ context.Context, req *wire.ChmodRequest) (*wire.ChmodResponse, error) {
	m := req
	return reply(&wire.ChmodResponse{}, s.a.chmod(m.GetUser(), m.GetPath(), fs.FileMode(m.GetMode())))
}

// Watch implements the service.
func (s *service) Watch(ctx context.Context, req *wire.WatchRequest, stream *connect.ServerStream[wire.WatchResponse]) error {
	m := req
	w, err := s.a.newWatch(m.GetUser(), m.GetPath(), m.GetRecursive())
	if err != nil {
		return wire.ToWire(err)
	}
	defer w.close()
	if err := stream.Send(&wire.WatchResponse{}); err != nil {
		return err
	}
	return wire.ToWire(w.run(ctx, func(e *wire.WatchResponse) error { return stream.Send(e) }))
}
