package host

import (
	"context"
	"io"
	"io/fs"
	"net"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// Guest returns the agent of a sandbox to one who may have it; a sandbox that
// sleeps is woken. The guest belongs to the host: its Close does nothing, and it
// need not be called. Every use of it counts as use of the sandbox.
//
// [arenero.NotFound] when there is none or it is another tenant's,
// [arenero.Conflict] when it has ended, [arenero.Denied] when the key lacks the
// scope, [arenero.Unavailable] when it can not be woken here.
func (h *Host) Guest(ctx context.Context, who Who, id string, scope Scope) (arenero.Guest, error) {
	b, err := h.own(ctx, who, id, scope, "use sandbox")
	if err != nil {
		return nil, err
	}
	return h.guestOf(ctx, b)
}

func notRunning(op string, sb arenero.Sandbox) error {
	why := ""
	if sb.Reason != "" {
		why = ": " + sb.Reason
	}
	err := arenero.Errorf(arenero.Conflict, op, sb.ID, "it is %s%s", sb.State, why)
	if sb.State.Ended() || sb.State == arenero.Killing {
		return err.WithHint("make a new sandbox")
	}
	return err.WithHint("try again in a moment")
}

func (h *Host) guestOf(ctx context.Context, b *box) (arenero.Guest, error) {
	for range 3 { // it may be put to sleep again in between
		b.mu.Lock()
		sb, y := b.sb, b.body
		b.used = h.now()
		b.mu.Unlock()
		if sb.State != arenero.Running || y == nil { // no body: it is being taken up
			if err := h.rouse(ctx, b); err != nil {
				return nil, err
			}
			continue
		}
		y.mu.Lock()
		raw, suspect := y.guest, y.suspect
		y.mu.Unlock()
		if suspect || raw == nil {
			var err error
			if raw, err = h.regreet(ctx, b); err != nil {
				return nil, err
			}
			y = b.at()
		}
		return &guest{Guest: raw, h: h, b: b, y: y, grace: h.Grace}, nil
	}
	return nil, notRunning("use sandbox", b.sandbox())
}

// rouse waits until whoever changes the sandbox is through, and wakes it if it
// sleeps then.
func (h *Host) rouse(ctx context.Context, b *box) error {
	select {
	case <-b.made:
	case <-ctx.Done():
		return arenero.Errorf(arenero.Canceled, "use sandbox", b.id(), "the caller went away")
	}
	if s := b.state(); s.Ended() || s == arenero.Killing || s == arenero.Creating {
		return notRunning("use sandbox", b.sandbox())
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	return h.wake(ctx, b)
}

// regreet asks a guest whose wire failed whether it is there, and opens the wire
// again if it is not.
func (h *Host) regreet(ctx context.Context, b *box) (arenero.Guest, error) {
	b.turn.Lock()
	defer b.turn.Unlock()
	y := b.at()
	if b.state() != arenero.Running || y == nil {
		return nil, notRunning("use sandbox", b.sandbox())
	}
	y.mu.Lock()
	raw, suspect := y.guest, y.suspect
	y.mu.Unlock()
	if raw != nil && !suspect {
		return raw, nil // somebody was faster
	}
	var err error
	if raw != nil {
		ask, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err = raw.Hello(ask)
		cancel()
	}
	if raw == nil || err != nil {
		if raw != nil {
			_ = raw.Close() // it is of no use any more
		}
		if raw, err = greet(ctx, y.inst, greetAgain); err != nil {
			return nil, h.whyMute(ctx, y.inst, err)
		}
	}
	y.mu.Lock()
	y.guest, y.suspect = raw, false
	y.mu.Unlock()
	return raw, nil
}

// EnsureKernel makes sure that a kernel of this name runs; one that is missing,
// or dead, is started. language "" is python.
func (h *Host) EnsureKernel(ctx context.Context, g arenero.Guest, name, language string) error {
	own, ok := g.(*guest)
	if ok && own.y.knowsKernel(name) {
		return nil // asking the guest costs as much as a small cell
	}
	if err := startKernel(ctx, g, name, language); err != nil {
		return err
	}
	if ok {
		own.y.noteKernel(name, true)
	}
	return nil
}

func startKernel(ctx context.Context, g arenero.Guest, name, language string) error {
	have, err := g.ListKernels(ctx)
	if err != nil {
		return err
	}
	for _, k := range have {
		if k.Name != name {
			continue
		}
		if k.State == "dead" {
			return g.RestartKernel(ctx, name)
		}
		return nil
	}
	_, err = g.StartKernel(ctx, arenero.KernelRequest{Name: name, Language: language})
	if arenero.CodeOf(err) == arenero.Conflict {
		return nil // another call started it meanwhile
	}
	return err
}

func (y *body) knowsKernel(name string) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.kernels[name]
}

// noteKernel remembers a kernel that runs, or forgets one that may not.
func (y *body) noteKernel(name string, runs bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if runs {
		y.kernels[name] = true
	} else {
		delete(y.kernels, name)
	}
}

// guest is the agent of a sandbox as the doors get it: each call counts as use,
// is timed from outside, and if the box has ended says how.
type guest struct {
	arenero.Guest

	h     *Host
	b     *box
	y     *body
	grace time.Duration // how far past its timeout a run may answer
}

// Close does nothing: the wire is the host's.
func (g *guest) Close() error { return nil }

// call runs one call and looks at what became of it.
func call[T any](ctx context.Context, g *guest, f func() (T, error)) (T, error) {
	g.b.begin()
	defer func() { g.b.done(g.h.now()) }()
	v, err := f()
	return v, g.explain(ctx, err)
}

func call0(ctx context.Context, g *guest, f func() error) error {
	_, err := call(ctx, g, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// explain turns the failure of a wire into how the box ended, if it has.
func (g *guest) explain(ctx context.Context, err error) error {
	switch arenero.CodeOf(err) {
	case arenero.Unavailable, arenero.Internal, arenero.Timeout:
	default:
		return err
	}
	if exit, ok := g.ended(ctx); ok {
		what := "the sandbox has ended"
		if exit.OutOfMemory {
			what = "the sandbox has ended: out of memory"
		} else if exit.Reason != "" {
			what += ": " + printable(exit.Reason)
		}
		if !g.b.state().Ended() && exit.Destroyed {
			return arenero.Errorf(arenero.Conflict, "use sandbox", g.b.id(), "the call was cut off: %s", printable(exit.Reason)).
				WithHint("call again: the sandbox wakes up")
		}
		return arenero.Errorf(arenero.Conflict, "use sandbox", g.b.id(), "%s", what).WithHint("make a new sandbox")
	}
	g.y.mu.Lock()
	g.y.suspect = true
	g.y.mu.Unlock()
	return err
}

// ended says how the box ended. The wire breaks a little before the engine
// knows, so it waits a little.
func (g *guest) ended(ctx context.Context) (arenero.Exit, bool) {
	t := time.NewTimer(1500 * time.Millisecond)
	defer t.Stop()
	select {
	case <-g.y.gone:
		return g.y.exit, true
	case <-ctx.Done():
	case <-t.C:
	}
	return arenero.Exit{}, false
}

func (g *guest) Stat(ctx context.Context, user, path string) (arenero.FileInfo, error) {
	return call(ctx, g, func() (arenero.FileInfo, error) { return g.Guest.Stat(ctx, user, path) })
}

func (g *guest) ReadDir(ctx context.Context, user, path string, depth int) ([]arenero.FileInfo, error) {
	return call(ctx, g, func() ([]arenero.FileInfo, error) { return g.Guest.ReadDir(ctx, user, path, depth) })
}

func (g *guest) ReadFile(ctx context.Context, user, path string, offset, size int64) (io.ReadCloser, arenero.FileInfo, error) {
	g.b.begin()
	r, info, err := g.Guest.ReadFile(ctx, user, path, offset, size)
	if err != nil {
		g.b.done(g.h.now())
		return nil, info, g.explain(ctx, err)
	}
	return &usedReader{ReadCloser: r, g: g}, info, nil
}

func (g *guest) ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error) {
	g.b.begin()
	r, err := g.Guest.ReadTree(ctx, user, path)
	if err != nil {
		g.b.done(g.h.now())
		return nil, g.explain(ctx, err)
	}
	return &usedReader{ReadCloser: r, g: g}, nil
}

func (g *guest) WriteTree(ctx context.Context, user, path string, r io.Reader) (arenero.TreeInfo, error) {
	return call(ctx, g, func() (arenero.TreeInfo, error) { return g.Guest.WriteTree(ctx, user, path, r) })
}

// usedReader ends the use of the sandbox when it is closed.
type usedReader struct {
	io.ReadCloser

	g    *guest
	once sync.Once
}

func (r *usedReader) Close() error {
	r.once.Do(func() { r.g.b.done(r.g.h.now()) })
	return r.ReadCloser.Close()
}

func (g *guest) WriteFile(ctx context.Context, user, path string, mode fs.FileMode, r io.Reader) (arenero.FileInfo, error) {
	return call(ctx, g, func() (arenero.FileInfo, error) { return g.Guest.WriteFile(ctx, user, path, mode, r) })
}

func (g *guest) MakeDir(ctx context.Context, user, path string, mode fs.FileMode) error {
	return call0(ctx, g, func() error { return g.Guest.MakeDir(ctx, user, path, mode) })
}

func (g *guest) Move(ctx context.Context, user, from, to string) error {
	return call0(ctx, g, func() error { return g.Guest.Move(ctx, user, from, to) })
}

func (g *guest) Remove(ctx context.Context, user, path string) error {
	return call0(ctx, g, func() error { return g.Guest.Remove(ctx, user, path) })
}

func (g *guest) Chmod(ctx context.Context, user, path string, mode fs.FileMode) error {
	return call0(ctx, g, func() error { return g.Guest.Chmod(ctx, user, path, mode) })
}

func (g *guest) StartKernel(ctx context.Context, k arenero.KernelRequest) (arenero.KernelInfo, error) {
	return call(ctx, g, func() (arenero.KernelInfo, error) { return g.Guest.StartKernel(ctx, k) })
}

func (g *guest) ListKernels(ctx context.Context) ([]arenero.KernelInfo, error) {
	return call(ctx, g, func() ([]arenero.KernelInfo, error) { return g.Guest.ListKernels(ctx) })
}

func (g *guest) StopKernel(ctx context.Context, name string) error {
	g.y.noteKernel(name, false)
	return call0(ctx, g, func() error { return g.Guest.StopKernel(ctx, name) })
}

func (g *guest) RestartKernel(ctx context.Context, name string) error {
	g.y.noteKernel(name, false)
	return call0(ctx, g, func() error { return g.Guest.RestartKernel(ctx, name) })
}

func (g *guest) InterruptKernel(ctx context.Context, name string) error {
	return call0(ctx, g, func() error { return g.Guest.InterruptKernel(ctx, name) })
}

func (g *guest) ListProcesses(ctx context.Context) ([]arenero.ProcessInfo, error) {
	return call(ctx, g, func() ([]arenero.ProcessInfo, error) { return g.Guest.ListProcesses(ctx) })
}

func (g *guest) Signal(ctx context.Context, pid int, signal string, tree bool) error {
	return call0(ctx, g, func() error { return g.Guest.Signal(ctx, pid, signal, tree) })
}

func (g *guest) DialPort(ctx context.Context, port int) (net.Conn, error) {
	g.b.begin()
	c, err := g.Guest.DialPort(ctx, port)
	if err != nil {
		g.b.done(g.h.now())
		return nil, g.explain(ctx, err)
	}
	return &usedConn{Conn: c, g: g}, nil
}

type usedConn struct {
	net.Conn

	g    *guest
	once sync.Once
}

func (c *usedConn) Close() error {
	c.once.Do(func() { c.g.b.done(c.g.h.now()) })
	return c.Conn.Close()
}
