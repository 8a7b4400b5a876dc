package dial

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// patience ends a transfer in which the guest stands still for twice the time that
// a call may take. The whole takes as long as it takes, and so does our own side:
// only what is between start and stop counts.
type patience struct {
	limit time.Duration
	timer *time.Timer
	over  atomic.Bool
}

func newPatience(limit time.Duration, cancel context.CancelFunc) *patience {
	p := &patience{limit: 2 * limit}
	p.timer = time.AfterFunc(p.limit, func() {
		p.over.Store(true)
		cancel()
	})
	p.timer.Stop()
	return p
}

func (p *patience) start() { p.timer.Reset(p.limit) }
func (p *patience) stop()  { p.timer.Stop() }

// explain is wire.FromWire that knows who cancelled.
func (p *patience) explain(op string, err error) error {
	if err != nil && p.over.Load() {
		return arenero.Errorf(arenero.Timeout, op, "", "the guest stood still for %v", p.limit)
	}
	return wire.FromWire(op, err)
}

// A download is what the guest sends in pieces, as an [io.ReadCloser].
type download[T any, P interface {
	*T
	GetData() []byte
}] struct {
	op     string
	st     *connect.ServerStreamForClient[T]
	cancel context.CancelFunc
	wait   *patience
	rest   []byte
	left   int64 // what may still come; < 0: all there is
}

// startDownload waits for the first message, which says that there is something
// to read. At most size bytes may come, if it is not negative.
func startDownload[Req, T any, P interface {
	*T
	GetData() []byte
}](ctx context.Context, limit time.Duration, op string, open func(context.Context, *Req) (*connect.ServerStreamForClient[T], error), req *Req, size int64) (*download[T, P], error) {
	ctx, cancel := context.WithCancel(ctx)
	wait := newPatience(limit, cancel)
	wait.start()
	st, err := open(ctx, req)
	if err != nil {
		wait.stop()
		cancel()
		return nil, wait.explain(op, err)
	}
	d := &download[T, P]{op: op, st: st, cancel: cancel, wait: wait, left: size}
	if err = d.next(); errors.Is(err, io.EOF) {
		err = broken(op, "no answer")
	}
	if err != nil {
		_ = d.Close() // the first error says more
		return nil, err
	}
	return d, nil
}

// next takes the data of the next message. The guest may not send more than was
// asked for.
func (d *download[T, P]) next() error {
	d.wait.start()
	ok := d.st.Receive()
	d.wait.stop()
	if !ok {
		if err := d.wait.explain(d.op, d.st.Err()); err != nil {
			return err
		}
		return io.EOF
	}
	d.rest = P(d.st.Msg()).GetData()
	if d.left < 0 {
		return nil
	}
	if int64(len(d.rest)) > d.left {
		d.rest = nil
		return broken(d.op, "more bytes than were asked for")
	}
	d.left -= int64(len(d.rest))
	return nil
}

// Read implements [io.Reader].
func (d *download[T, P]) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if err := d.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// WriteTo spares a copy.
func (d *download[T, P]) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		n, err := w.Write(d.rest)
		total += int64(n)
		d.rest = d.rest[n:]
		if err != nil {
			return total, err
		}
		if err := d.next(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return total, err
		}
	}
}

// Close ends the transfer.
func (d *download[T, P]) Close() error {
	d.wait.stop()
	d.cancel()
	_ = d.st.Close() // cancelled: it can not say anything new
	return nil
}

// An upload is what is sent to the guest: first, the pieces of src, and done.
// Without the last word the guest lets nothing appear.
type upload[Req, Res any] struct {
	op    string
	limit time.Duration // see Guest
	open  func(context.Context) (*connect.ClientStreamForClientSimple[Req, Res], error)
	first *Req
	piece func([]byte) *Req
	done  *Req
}

func (u upload[Req, Res]) send(ctx context.Context, src io.Reader) (*Res, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := newPatience(u.limit, cancel)
	defer wait.stop()
	st, err := u.open(ctx)
	if err != nil {
		return nil, wire.FromWire(u.op, err)
	}
	send := func(m *Req) error {
		wait.start()
		defer wait.stop()
		return st.Send(m)
	}
	if err = send(u.first); err == nil {
		err = u.pieces(ctx, send, src)
	}
	if source, ok := errors.AsType[*sourceError](err); ok {
		over := ctx.Err()
		cancel()
		_, _ = st.CloseAndReceive()
		if over != nil {
			return nil, wire.FromWire(u.op, over)
		}
		return nil, arenero.Errorf(arenero.Invalid, u.op, "", "read what is to be written: %w", source.error)
	}
	// After a failed send the answer says why.
	wait.start()
	res, rerr := st.CloseAndReceive()
	if rerr != nil {
		return nil, wait.explain(u.op, rerr)
	}
	return res, wait.explain(u.op, err)
}

// A sourceError is the caller's own reader's.
type sourceError struct{ error }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// pieces sends a source to its end. It looks at ctx before each read: a source that
// comes in drops would else be read on for as long as a whole message takes to fill.
func (u upload[Req, Res]) pieces(ctx context.Context, send func(*Req) error, src io.Reader) error {
	living := readerFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return src.Read(b)
	})
	buf := make([]byte, maxPiece)
	for {
		n, err := io.ReadFull(living, buf)
		if n > 0 {
			if err := send(u.piece(buf[:n])); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return send(u.done)
		case err != nil:
			return &sourceError{err}
		}
	}
}
