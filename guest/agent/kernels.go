package agent

import (
	"context"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent/jupyter"
	"github.com/arenero/arenero/guest/wire"
)

// newKernels makes the manager of kernels, which starts them through us.
func (a *Agent) newKernels() *jupyter.Manager {
	return jupyter.New(jupyter.Config{
		Start:    a.startKernel,
		SpecDirs: a.cfg.SpecDirs,
		RunDir:   a.cfg.RunDir,
		Dial: func(ctx context.Context, path string) (c net.Conn, err error) {
			err = a.as(a.identity().user, func() error {
				c, err = dialUnix(ctx, path)
				return err
			})
			return c, err
		},
		User:    func() arenero.User { return a.identity().user.User },
		Workdir: func() string { return a.identity().workdir },
		Env: func() []string {
			id := a.identity()
			return id.environ(id.user.User, nil, false)
		},
		Log: a.log,
	})
}

// dialUnix connects in the calling thread, whose rights count; the net package
// would do so too, but does not promise it.
func dialUnix(_ context.Context, path string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f)
}

func (a *Agent) startKernel(_ context.Context, c jupyter.Cmd) (jupyter.Proc, error) {
	p, err := a.launch(launch{
		argv: c.Argv, environ: c.Env, dir: c.Dir, tag: c.Tag, kernel: true, sink: c.Output,
	})
	if err != nil {
		return nil, err
	}
	return kernelProc{p}, nil
}

// kernelProc is a process as the manager of kernels wants it.
type kernelProc struct{ p *process }

func (k kernelProc) PID() int              { return k.p.pid }
func (k kernelProc) Done() <-chan struct{} { return k.p.done }

func (k kernelProc) Exit() jupyter.ProcExit {
	return jupyter.ProcExit{
		Code: int(k.p.exit.GetCode()), Signal: k.p.exit.GetSignal(), OutOfMemory: k.p.outOfMemory.Load(),
	}
}

func (k kernelProc) Signal(sig os.Signal) error {
	n, ok := sig.(unix.Signal)
	if !ok {
		return unix.EINVAL
	}
	return unix.Kill(-k.p.pid, n)
}

func (k kernelProc) KillTree() error {
	k.p.a.killTree(k.p)
	return nil
}

// StartKernel implements the service.
func (s *service) StartKernel(ctx context.Context, req *wire.StartKernelRequest) (*wire.KernelInfo, error) {
	m := req
	k, err := s.a.kernels.Start(ctx, arenero.KernelRequest{
		Name: m.GetName(), Language: m.GetLanguage(), Dir: m.GetDir(), Env: m.GetEnv(),
	})
	if err == nil {
		err = s.a.settle(ctx)
	}
	return reply(kernelInfo(k), err)
}

// settle makes what is to be a snapshot small: each sandbox restored from it pays
// for every page. It does nothing in a sandbox that has been claimed.
func (a *Agent) settle(ctx context.Context) error {
	if id := a.identity(); !id.warm || id.claimed {
		return nil
	}
	if err := a.kernels.Settle(ctx); err != nil {
		return err
	}
	debug.FreeOSMemory()
	return nil
}

func kernelInfo(k arenero.KernelInfo) *wire.KernelInfo {
	return &wire.KernelInfo{
		Name: k.Name, Language: k.Language, Spec: k.Spec, Dir: k.Dir, State: k.State,
		Pid: int64(k.PID), Count: int32(k.Count),
	}
}

// ListKernels implements the service.
func (s *service) ListKernels(context.Context, *wire.ListKernelsRequest) (*wire.ListKernelsResponse, error) {
	r := &wire.ListKernelsResponse{}
	for _, k := range s.a.kernels.List() {
		r.Kernels = append(r.Kernels, kernelInfo(k))
	}
	return r, nil
}

// StopKernel implements the service.
func (s *service) StopKernel(ctx context.Context, req *wire.KernelName) (*wire.KernelDone, error) {
	return reply(&wire.KernelDone{}, s.a.kernels.Stop(ctx, req.GetName()))
}

// RestartKernel implements the service.
func (s *service) RestartKernel(ctx context.Context, req *wire.KernelName) (*wire.KernelDone, error) {
	return reply(&wire.KernelDone{}, s.a.kernels.Restart(ctx, req.GetName()))
}

// InterruptKernel implements the service.
func (s *service) InterruptKernel(ctx context.Context, req *wire.KernelName) (*wire.KernelDone, error) {
	return reply(&wire.KernelDone{}, s.a.kernels.Interrupt(ctx, req.GetName()))
}

// Execute implements the service.
func (s *service) Execute(ctx context.Context, stream *connect.BidiStream[wire.ExecuteInput, wire.ExecuteOutput]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	st := first.GetStart()
	if st == nil {
		return wire.ToWire(arenero.Errorf(arenero.Invalid, "execute", "", "the first message is not start"))
	}
	e := arenero.Execute{
		Kernel: st.GetKernel(), Code: st.GetCode(), Timeout: time.Duration(st.GetTimeoutMs()) * time.Millisecond,
		Env: st.GetEnv(), AllowStdin: st.GetAllowStdin(), Silent: st.GetSilent(),
	}
	if sc := st.GetScript(); sc != nil {
		e.Script = &arenero.Script{File: sc.GetFile(), Args: sc.GetArgs(), Stdin: sc.GetStdin()}
	}
	var answers chan string
	var inputs sync.WaitGroup
	if e.AllowStdin {
		answers = make(chan string, 16)
		inputs.Go(func() {
			for {
				in, err := stream.Receive()
				if err != nil {
					return
				}
				select {
				case answers <- in.GetAnswer():
				case <-ctx.Done():
					return
				}
			}
		})
	}
	defer inputs.Wait()
	defer stopReading(ctx)
	defer s.a.guard.cell()()
	var end jupyter.Event
	err = s.a.kernels.Execute(ctx, e, answers, func(ev jupyter.Event) error {
		if ev.End != nil {
			end = ev // sent below
			return nil
		}
		return stream.Send(executeOutput(ev))
	})
	if err != nil || end.End == nil {
		return wire.ToWire(err)
	}
	// Whoever hears of the end may take the snapshot at once.
	if err := s.a.settle(ctx); err != nil {
		return wire.ToWire(err)
	}
	return wire.ToWire(stream.Send(executeOutput(end)))
}

func executeOutput(e jupyter.Event) *wire.ExecuteOutput {
	out := &wire.ExecuteOutput{}
	switch {
	case e.Stdout != nil:
		out.Output = &wire.ExecuteOutput_Stdout{Stdout: e.Stdout}
	case e.Stderr != nil:
		out.Output = &wire.ExecuteOutput_Stderr{Stderr: e.Stderr}
	case e.Display != nil:
		out.Output = &wire.ExecuteOutput_Display{Display: display(e.Display)}
	case e.Update != nil:
		out.Output = &wire.ExecuteOutput_Update{Update: display(e.Update)}
	case e.Clear != nil:
		out.Output = &wire.ExecuteOutput_Clear{Clear: &wire.ClearOutput{Wait: e.Clear.Wait}}
	case e.Input != nil:
		out.Output = &wire.ExecuteOutput_Input{Input: &wire.InputRequest{Prompt: e.Input.Prompt, Password: e.Input.Password}}
	case e.Error != nil:
		out.Output = &wire.ExecuteOutput_Error{Error: &wire.RunError{
			Name: e.Error.Name, Value: e.Error.Value, Traceback: e.Error.Traceback,
		}}
	case e.End != nil:
		out.Output = &wire.ExecuteOutput_End{End: &wire.KernelEnd{
			Reason: string(e.End.Reason), ExitCode: int32(e.End.ExitCode), Signal: e.End.Signal,
			ExecutionCount: int32(e.End.ExecutionCount), DurationUs: e.End.Duration.Microseconds(),
		}}
	}
	if n := proto.Size(out); n > wire.MaxMessage-(1<<10) {
		return &wire.ExecuteOutput{Output: &wire.ExecuteOutput_Stderr{
			Stderr: []byte("[a result was left out: it is larger than 32 MiB]\n"),
		}}
	}
	return out
}

func display(d *jupyter.Display) *wire.Display {
	return &wire.Display{Mime: d.MIME, IsMain: d.Main, Id: d.ID, ChartJson: d.Chart}
}

// Complete implements the service.
func (s *service) Complete(ctx context.Context, req *wire.CompleteRequest) (*wire.CompleteResponse, error) {
	c, err := s.a.kernels.Complete(ctx, req.GetKernel(), req.GetCode(), int(req.GetCursor()))
	return reply(&wire.CompleteResponse{Matches: c.Matches, Start: int32(c.Start), End: int32(c.End)}, err)
}

// Inspect implements the service.
func (s *service) Inspect(ctx context.Context, req *wire.InspectRequest) (*wire.InspectResponse, error) {
	m, err := s.a.kernels.Inspect(ctx, req.GetKernel(), req.GetCode(), int(req.GetCursor()))
	return reply(&wire.InspectResponse{Mime: m}, err)
}
