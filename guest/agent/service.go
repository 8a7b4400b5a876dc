package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// service answers the calls of the host. Each method translates, and leaves the
// work to the agent.
type service struct{ a *Agent }

type controlKey struct{}

// withControl hands a call's means to end its own reading to the call.
func withControl(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controlKey{}, http.NewResponseController(w))
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// stopReading ends a Receive that blocks, so that who runs it can be joined.
func stopReading(ctx context.Context) {
	if c, ok := ctx.Value(controlKey{}).(*http.ResponseController); ok {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
}

func reply[T any](msg *T, err error) (*T, error) {
	if err != nil {
		return nil, wire.ToWire(err)
	}
	return msg, nil
}

// Hello implements the service.
func (s *service) Hello(context.Context, *wire.HelloRequest) (*wire.HelloResponse, error) {
	r := &wire.HelloResponse{Version: Version, UptimeMs: s.a.uptime().Milliseconds()}
	for _, k := range s.a.kernels.Specs() {
		r.Specs = append(r.Specs, &wire.KernelSpec{Name: k.Name, Language: k.Language, Display: k.Display})
	}
	return r, nil
}

// Wake implements the service.
func (s *service) Wake(ctx context.Context, req *wire.WakeRequest) (*wire.WakeResponse, error) {
	m := req
	l, u := m.GetLimits(), m.GetUser()
	err := s.a.wake(ctx, arenero.Wake{
		SandboxID: m.GetSandboxId(), Hostname: m.GetHostname(), Now: time.Unix(0, m.GetNowUnixNanos()),
		Entropy: m.GetEntropy(), Env: m.GetEnv(), Workdir: m.GetWorkdir(), Warm: m.GetWarm(),
		Limits: arenero.Limits{
			CPUs: l.GetCpus(), Memory: l.GetMemory(), Processes: int(l.GetProcesses()), Disk: l.GetDisk(),
			OpenFiles: int(l.GetOpenFiles()), Output: l.GetOutput(),
		},
		User: arenero.User{Name: u.GetName(), UID: u.GetUid(), GID: u.GetGid(), Home: u.GetHome()},
	})
	return reply(&wire.WakeResponse{}, err)
}

// Process implements the service.
func (s *service) Process(ctx context.Context, stream *connect.BidiStream[wire.ProcessInput, wire.ProcessOutput]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	p, ours, err := s.process(first)
	if err != nil {
		return wire.ToWire(err)
	}
	t := p.out.tap()
	defer t.close()
	defer context.AfterFunc(ctx, t.close)()
	started := &wire.ProcessOutput{Output: &wire.ProcessOutput_Started{Started: &wire.ProcessStarted{Pid: int64(p.pid)}}}
	if err := stream.Send(started); err != nil {
		return s.leave(p, ours, err)
	}
	var inputs sync.WaitGroup
	inputs.Go(func() { s.inputs(stream, p) })
	err = s.outputs(stream, t)
	if err != nil || ctx.Err() != nil {
		err = s.leave(p, ours, errors.Join(err, ctx.Err()))
	}
	stopReading(ctx)
	inputs.Wait()
	return wire.ToWire(err)
}

func (s *service) process(first *wire.ProcessInput) (p *process, ours bool, err error) {
	if at := first.GetAttach(); at != nil {
		p, err = s.a.find(at.GetPid())
		return p, false, err
	}
	st := first.GetStart()
	if st == nil {
		return nil, false, arenero.Errorf(arenero.Invalid, "start process", "", "the first message is neither start nor attach")
	}
	p, err = s.a.launch(launch{
		argv: st.GetArgv(), env: st.GetEnv(), dir: st.GetDir(), user: st.GetUser(), stdin: st.GetStdin(),
		window: st.GetPty(), timeout: time.Duration(st.GetTimeoutMs()) * time.Millisecond,
		detach: st.GetDetach(), tag: st.GetTag(), keep: st.GetOutputKeep(),
	})
	return p, true, err
}

// leave is what happens when the caller goes away before the end.
func (s *service) leave(p *process, ours bool, err error) error {
	if ours && !p.detach {
		p.cancel()
	}
	return err
}

func (s *service) outputs(stream *connect.BidiStream[wire.ProcessInput, wire.ProcessOutput], t *tap) error {
	if t.dropped > 0 {
		if err := stream.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Dropped{Dropped: t.dropped}}); err != nil {
			return err
		}
	}
	var msg wire.ProcessOutput
	var out wire.ProcessOutput_Stdout
	var errs wire.ProcessOutput_Stderr
	for {
		kind, data, exit := t.next()
		switch {
		case exit != nil:
			msg.Output = &wire.ProcessOutput_Exit{Exit: exit}
		case data == nil:
			return nil // the caller has gone
		case kind == stdout:
			out.Stdout = data
			msg.Output = &out
		default:
			errs.Stderr = data
			msg.Output = &errs
		}
		if err := stream.Send(&msg); err != nil || exit != nil {
			return err
		}
	}
}

// inputs feeds the process until its caller says no more or goes away.
func (s *service) inputs(stream *connect.BidiStream[wire.ProcessInput, wire.ProcessOutput], p *process) {
	for {
		in, err := stream.Receive()
		if err != nil {
			return
		}
		switch {
		case in.GetCloseStdin() != nil:
			p.closeStdin()
		case in.GetResize() != nil:
			_ = p.resize(in.GetResize()) // the only fault is to have no terminal
		default:
			_ = p.write(in.GetStdin()) // a program need not read to the end
		}
	}
}

// ListProcesses implements the service.
func (s *service) ListProcesses(context.Context, *wire.ListProcessesRequest) (*wire.ListProcessesResponse, error) {
	s.a.procMu.Lock()
	defer s.a.procMu.Unlock()
	r := &wire.ListProcessesResponse{}
	for _, p := range s.a.procs {
		if !p.kernel {
			r.Processes = append(r.Processes, &wire.ProcessInfo{
				Pid: int64(p.pid), Tag: p.tag, Argv: p.argv, Dir: p.dir, StartedUnixMs: p.started.UnixMilli(),
			})
		}
	}
	return r, nil
}

// Signal implements the service.
func (s *service) Signal(_ context.Context, req *wire.SignalRequest) (*wire.SignalResponse, error) {
	const op = "signal process"
	sig := unix.SignalNum(req.GetSignal())
	if sig == 0 {
		return reply(&wire.SignalResponse{}, arenero.Errorf(arenero.Invalid, op, "", "%.32q is no signal", req.GetSignal()))
	}
	p, err := s.a.find(req.GetPid())
	if err == nil {
		err = s.a.signal(p, sig, req.GetTree())
	}
	return reply(&wire.SignalResponse{}, err)
}

func (a *Agent) signal(p *process, sig unix.Signal, tree bool) error {
	select {
	case <-p.exited:
		return arenero.Errorf(arenero.Conflict, "signal process", "", "it has ended")
	default:
	}
	switch sig {
	case unix.SIGKILL, unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP:
		p.cancelled.Store(true) // if it ends by a signal, it is this one
	}
	switch {
	case tree && sig == unix.SIGKILL:
		a.killTree(p)
	case tree:
		a.signalTree(p, sig)
	default:
		// A terminal's program leads a group; so does any other, being alone in its
		// session.
		if err := unix.Kill(p.pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return arenero.Errorf(arenero.Internal, "signal process", "", "%w", err)
		}
	}
	return nil
}

// Dial implements the service.
func (s *service) Dial(ctx context.Context, stream *connect.BidiStream[wire.DialInput, wire.DialOutput]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	c, err := dialPort(ctx, first.GetPort())
	if err != nil {
		return wire.ToWire(err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := stream.Send(&wire.DialOutput{}); err != nil {
		return err
	}
	var inputs sync.WaitGroup
	inputs.Go(func() {
		for {
			in, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				_ = c.CloseWrite()
			}
			if err != nil {
				return
			}
			if _, err := c.Write(in.GetData()); err != nil {
				_ = c.CloseRead()
				return
			}
		}
	})
	buf := make([]byte, piece)
	for err == nil {
		var n int
		n, err = c.Read(buf)
		if n > 0 {
			if serr := stream.Send(&wire.DialOutput{Data: buf[:n]}); serr != nil {
				err = serr
			}
		}
	}
	_ = c.Close()
	stopReading(ctx)
	inputs.Wait()
	return nil // however a TCP connection ended, its stream just ends
}
