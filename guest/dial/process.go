package dial

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// A bidi is a stream both ways, as the generated client makes it.
type bidi[In, Out any] = connect.BidiStreamForClientSimple[In, Out]

// A stream is the host's hold on a bidi: one reader, writers one at a time, and
// a context of its own, so that closing it ends it on both sides.
type stream[In, Out any] struct {
	op     string
	s      *bidi[In, Out]
	cancel context.CancelFunc
	wmu    sync.Mutex
	once   sync.Once
}

func openStream[In, Out any](ctx context.Context, op string, open func(context.Context) (*bidi[In, Out], error), first *In) (*stream[In, Out], error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := open(ctx)
	if err != nil {
		cancel()
		return nil, wire.FromWire(op, err)
	}
	// net/http watches the context only between pieces of the request, and ours
	// waits for the next one: it must end for the cancellation to be seen.
	context.AfterFunc(ctx, func() { _ = s.CloseRequest() }) // runs at the latest on close
	st := &stream[In, Out]{op: op, s: s, cancel: cancel}
	if err := st.send(first); err != nil {
		// The other side may have said why before it stopped listening.
		if _, rerr := st.receive(); rerr != nil && !errors.Is(rerr, io.EOF) {
			err = rerr
		}
		st.close()
		return nil, err
	}
	return st, nil
}

func (st *stream[In, Out]) send(m *In) error {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	err := st.s.Send(m)
	if errors.Is(err, io.EOF) {
		return arenero.Errorf(arenero.Conflict, st.op, "", "it has ended")
	}
	return wire.FromWire(st.op, err)
}

func (st *stream[In, Out]) receive() (*Out, error) {
	m, err := st.s.Receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, wire.FromWire(st.op, err)
	}
	return m, err
}

// within receives with a time limit, for answers that come at once.
func (st *stream[In, Out]) within(d time.Duration) (*Out, error) {
	t := time.AfterFunc(d, st.cancel)
	m, err := st.receive()
	if !t.Stop() {
		return nil, silent(st.op)
	}
	if errors.Is(err, io.EOF) {
		return nil, broken(st.op, "it ended the stream without a word")
	}
	return m, err
}

func (st *stream[In, Out]) close() {
	st.once.Do(func() {
		st.cancel()
		_ = st.s.CloseRequest()  // cancelled: neither can
		_ = st.s.CloseResponse() // say anything new
	})
}

type process struct {
	*stream[wire.ProcessInput, wire.ProcessOutput]

	pid     int
	dropped int64
	ended   bool
}

// Start implements [arenero.Processes].
func (g *Guest) Start(ctx context.Context, c arenero.Command) (arenero.Process, error) {
	start := &wire.ProcessStart{
		Argv: c.Argv, Env: c.Env, Dir: c.Dir, User: c.User, Stdin: c.Stdin, TimeoutMs: ceilMillis(c.Timeout),
		Detach: c.Detach, Tag: c.Tag, OutputKeep: c.OutputKeep,
	}
	if c.PTY != nil {
		start.Pty = &wire.Window{Cols: uint32(c.PTY.Cols), Rows: uint32(c.PTY.Rows)}
	}
	return g.process(ctx, "start process", &wire.ProcessInput{Input: &wire.ProcessInput_Start{Start: start}})
}

// Attach implements [arenero.Processes].
func (g *Guest) Attach(ctx context.Context, pid int) (arenero.Process, error) {
	const op = "attach process"
	p, err := g.process(ctx, op, &wire.ProcessInput{
		Input: &wire.ProcessInput_Attach{Attach: &wire.ProcessAttach{Pid: int64(pid)}},
	})
	if err == nil && p.PID() != pid {
		_ = p.Close() // what it is matters no more
		return nil, broken(op, "another pid than was asked for")
	}
	return p, err
}

func (g *Guest) process(ctx context.Context, op string, first *wire.ProcessInput) (arenero.Process, error) {
	st, err := openStream(ctx, op, g.api.Process, first)
	if err != nil {
		return nil, err
	}
	m, err := st.within(g.limit)
	if err != nil {
		st.close()
		return nil, err
	}
	started := m.GetStarted()
	if started == nil || started.GetPid() <= 0 || started.GetPid() > 1<<31 {
		st.close()
		return nil, broken(op, "no pid")
	}
	return &process{stream: st, pid: int(started.GetPid())}, nil
}

func (p *process) PID() int { return p.pid }

func (p *process) Next() (arenero.ProcessEvent, error) {
	for {
		if p.ended {
			return arenero.ProcessEvent{}, io.EOF
		}
		m, err := p.receive()
		if errors.Is(err, io.EOF) {
			return arenero.ProcessEvent{}, broken(p.op, "it ended the stream before the process")
		}
		if err != nil {
			return arenero.ProcessEvent{}, err
		}
		switch o := m.GetOutput().(type) {
		case *wire.ProcessOutput_Stdout:
			return p.event(arenero.ProcessEvent{Stdout: o.Stdout}), nil
		case *wire.ProcessOutput_Stderr:
			return p.event(arenero.ProcessEvent{Stderr: o.Stderr}), nil
		case *wire.ProcessOutput_Dropped:
			p.dropped += max(o.Dropped, 0)
		case *wire.ProcessOutput_Exit:
			p.ended = true
			return p.event(arenero.ProcessEvent{Exit: &arenero.ProcessExit{
				Code: within(int64(o.Exit.GetCode()), -1, 255), Signal: signalName(o.Exit.GetSignal()),
				Reason: reason(o.Exit.GetReason()), Duration: micros(o.Exit.GetDurationUs()),
			}}), nil
		}
	}
}

func (p *process) event(e arenero.ProcessEvent) arenero.ProcessEvent {
	e.Dropped, p.dropped = max(p.dropped, 0), 0
	return e
}

// maxPiece bounds one message of data to the guest.
const maxPiece = 256 << 10

func (p *process) Write(b []byte) (int, error) {
	sent := 0
	for len(b) > 0 {
		n := min(len(b), maxPiece)
		if err := p.send(&wire.ProcessInput{Input: &wire.ProcessInput_Stdin{Stdin: b[:n]}}); err != nil {
			return sent, err
		}
		sent, b = sent+n, b[n:]
	}
	return sent, nil
}

func (p *process) CloseStdin() error {
	return p.send(&wire.ProcessInput{Input: &wire.ProcessInput_CloseStdin{CloseStdin: &wire.CloseStdin{}}})
}

func (p *process) Resize(w arenero.Window) error {
	return p.send(&wire.ProcessInput{Input: &wire.ProcessInput_Resize{Resize: &wire.Window{Cols: uint32(w.Cols), Rows: uint32(w.Rows)}}})
}

func (p *process) Close() error {
	p.close()
	return nil
}

// ListProcesses implements [arenero.Processes].
func (g *Guest) ListProcesses(ctx context.Context) ([]arenero.ProcessInfo, error) {
	res, err := call(ctx, g, "list processes", g.api.ListProcesses, &wire.ListProcessesRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]arenero.ProcessInfo, 0, len(head(res.GetProcesses(), maxCount)))
	for _, p := range head(res.GetProcesses(), maxCount) {
		info := arenero.ProcessInfo{
			PID: within(p.GetPid(), 0, 1<<31), Tag: text(p.GetTag(), 256), Dir: text(p.GetDir(), 4096),
			Started: time.UnixMilli(max(p.GetStartedUnixMs(), 0)),
		}
		for _, a := range head(p.GetArgv(), 256) {
			info.Argv = append(info.Argv, text(a, 4096))
		}
		list = append(list, info)
	}
	return list, nil
}

// Signal implements [arenero.Processes].
func (g *Guest) Signal(ctx context.Context, pid int, signal string, tree bool) error {
	_, err := call(ctx, g, "signal process", g.api.Signal, &wire.SignalRequest{Pid: int64(pid), Signal: signal, Tree: tree})
	return err
}

// signalName lets only what can name a signal through.
func signalName(s string) string {
	if len(s) > 16 {
		return ""
	}
	for _, r := range s {
		if (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '+' {
			return ""
		}
	}
	return s
}

// ceilMillis rounds up: a timeout must never become none.
func ceilMillis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
