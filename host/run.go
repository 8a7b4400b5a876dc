package host

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arenero/arenero"
)

// An overseer watches one run from outside the sandbox: the agent is to end it at
// its timeout, but the agent is in there with the code. Its clock stands still
// while the sandbox sleeps.
type overseer struct {
	g       *guest
	kind    string
	what    string // for the event
	started time.Time
	timeout time.Duration // 0 is none
	cancel  context.CancelFunc
	overdue atomic.Bool
	once    sync.Once
	release func()

	mu    sync.Mutex
	timer *time.Timer   // nil without a timeout
	left  time.Duration // of the time, when the timer was last set
	since time.Time     // when that was
}

// oversee begins to watch a run. The context it returns is for the run's stream.
func (g *guest) oversee(ctx context.Context, kind, what string, timeout time.Duration, release func()) (context.Context, *overseer) {
	ctx, cancel := context.WithCancel(ctx)
	o := &overseer{g: g, kind: kind, what: what, started: time.Now(), timeout: timeout, cancel: cancel, release: release}
	g.b.begin()
	g.y.mu.Lock()
	defer g.y.mu.Unlock()
	if timeout > 0 {
		o.left, o.since = timeout+g.grace, o.started
		o.timer = time.AfterFunc(o.left, func() {
			o.overdue.Store(true)
			cancel()
		})
	}
	g.y.runs[o] = struct{}{}
	if g.y.frozen {
		o.freeze()
	}
	return ctx, o
}

func (o *overseer) freeze() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil && o.timer.Stop() {
		o.left = max(o.left-time.Since(o.since), 0)
	}
}

func (o *overseer) thaw() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil && !o.overdue.Load() {
		o.since = time.Now()
		o.timer.Reset(o.left)
	}
}

// end is called once the run is over, or let go of; reason is for the record.
func (o *overseer) end(reason arenero.ExitReason) {
	o.once.Do(func() {
		if o.timer != nil {
			o.timer.Stop()
		}
		o.g.y.mu.Lock()
		delete(o.g.y.runs, o)
		o.g.y.mu.Unlock()
		o.cancel()
		o.g.b.done(o.g.h.now())
		took := time.Since(o.started)
		o.g.h.meter.ran(o.kind, reason, took)
		o.g.h.tell(o.g.b.sandbox(), o.kind, map[string]string{
			"what": o.what, "exit_reason": string(reason), "duration_ms": strconv.FormatInt(took.Milliseconds(), 10),
		})
		if o.release != nil {
			o.release()
		}
	})
}

// verdict tells from outside how a run ended whose stream broke: by its timeout,
// or with its box. Otherwise it returns the error that the caller is to see.
func (o *overseer) verdict(ctx context.Context, err error) (reason arenero.ExitReason, code int, out error) {
	if o.overdue.Load() {
		o.g.h.log.Warn("guest did not end a run at its timeout; ending the sandbox", "id", o.g.b.id(), "timeout", o.timeout)
		o.g.h.endSoon(ctx, o.g.b, "a run went on past its timeout and could not be stopped", arenero.TimedOut)
		return arenero.TimedOut, 124, nil
	}
	if ctx.Err() != nil {
		return "", 0, arenero.Errorf(arenero.Canceled, "follow run", o.g.b.id(), "the caller went away")
	}
	if exit, ok := o.g.ended(ctx); ok {
		switch {
		case exit.OutOfMemory:
			return arenero.OutOfMemory, 137, nil
		case exit.Destroyed:
			return arenero.Cancelled, 137, nil
		}
		return arenero.WasKilled, 137, nil
	}
	return "", 0, o.g.explain(ctx, err)
}

// limitOf returns the time a run may take.
func (g *guest) limitOf(asked time.Duration, endless bool) (time.Duration, error) {
	if asked < 0 || asked > arenero.MaxTimeout {
		return 0, arenero.Errorf(arenero.Invalid, "check timeout", "", "timeout is %v, must be between 0 and %v", asked, arenero.MaxTimeout)
	}
	if asked == 0 && !endless {
		return g.b.sandbox().Limits.Timeout, nil
	}
	return asked, nil
}

// Start starts a command. Without a timeout of its own it gets the sandbox's,
// unless it is detached or a terminal.
func (g *guest) Start(ctx context.Context, c arenero.Command) (arenero.Process, error) {
	if err := checkCommand(c); err != nil {
		return nil, err
	}
	var err error
	if c.Timeout, err = g.limitOf(c.Timeout, c.Detach || c.PTY != nil); err != nil {
		return nil, err
	}
	return g.process(ctx, clip(printable(c.Argv[0]), 100), c.Timeout, func(ctx context.Context) (arenero.Process, error) { return g.Guest.Start(ctx, c) })
}

// Attach takes up a process.
func (g *guest) Attach(ctx context.Context, pid int) (arenero.Process, error) {
	return g.process(ctx, "pid "+strconv.Itoa(pid), 0, func(ctx context.Context) (arenero.Process, error) { return g.Guest.Attach(ctx, pid) })
}

func (g *guest) process(ctx context.Context, what string, timeout time.Duration, open func(context.Context) (arenero.Process, error)) (arenero.Process, error) {
	inner, o := g.oversee(ctx, "process", what, timeout, nil)
	p, err := open(inner)
	if err != nil {
		defer o.end("")
		return nil, g.explain(ctx, err)
	}
	return &process{Process: p, o: o, ctx: ctx}, nil
}

// process is a process seen through its overseer.
type process struct {
	arenero.Process

	o    *overseer
	ctx  context.Context // of the call that started it: a stream lives in it
	done bool
}

func (p *process) Next() (arenero.ProcessEvent, error) {
	if p.done {
		return arenero.ProcessEvent{}, io.EOF
	}
	e, err := p.Process.Next()
	if err == nil {
		if e.Exit != nil {
			p.done = true
			p.o.end(e.Exit.Reason)
		}
		return e, nil
	}
	p.done = true
	if errors.Is(err, io.EOF) { // a guest that ends a stream without saying how breaks the protocol
		err = arenero.Errorf(arenero.Internal, "follow process", p.o.g.b.id(), "the guest did not say how it ended")
	}
	reason, code, err := p.o.verdict(p.ctx, err)
	p.o.end(reason)
	if err != nil {
		return arenero.ProcessEvent{}, err
	}
	return arenero.ProcessEvent{Exit: &arenero.ProcessExit{
		Code: code, Signal: "SIGKILL", Reason: reason, Duration: time.Since(p.o.started),
	}}, nil
}

func (p *process) Close() error {
	defer p.o.end(arenero.Cancelled)
	return p.Process.Close()
}

// Execute runs a cell. Cells of one kernel wait here for one another, so that a
// cell's timeout is not spent in the queue.
func (g *guest) Execute(ctx context.Context, e arenero.Execute) (arenero.Execution, error) {
	var err error
	if e.Timeout, err = g.limitOf(e.Timeout, false); err != nil {
		return nil, err
	}
	if err := CheckEnv(e.Env); err != nil {
		return nil, err
	}
	release, err := g.y.queue(ctx, g.b.id(), e.Kernel)
	if err != nil {
		return nil, err
	}
	inner, o := g.oversee(ctx, "cell", e.Kernel, e.Timeout, release)
	x, err := g.Guest.Execute(inner, e)
	if err != nil {
		defer o.end("")
		g.y.noteKernel(e.Kernel, false)
		return nil, g.explain(ctx, err)
	}
	return &execution{Execution: x, o: o, ctx: ctx, kernel: e.Kernel}, nil
}

// execution is a cell seen through its overseer.
type execution struct {
	arenero.Execution

	o      *overseer
	ctx    context.Context // of the call that started it: a stream lives in it
	kernel string
	done   bool
}

func (x *execution) Next() (arenero.KernelEvent, error) {
	if x.done {
		return arenero.KernelEvent{}, io.EOF
	}
	e, err := x.Execution.Next()
	if err == nil {
		if e.End != nil {
			x.done = true
			if e.End.Reason != arenero.Exited && e.End.Reason != arenero.RaisedError {
				x.o.g.y.noteKernel(x.kernel, false) // it may have died of it
			}
			x.o.end(e.End.Reason)
		}
		return e, nil
	}
	x.done = true
	x.o.g.y.noteKernel(x.kernel, false)
	if errors.Is(err, io.EOF) {
		err = arenero.Errorf(arenero.Internal, "follow cell", x.o.g.b.id(), "the guest did not say how it ended")
	}
	reason, code, err := x.o.verdict(x.ctx, err)
	x.o.end(reason)
	if err != nil {
		return arenero.KernelEvent{}, err
	}
	return arenero.KernelEvent{End: &arenero.KernelEnd{
		Reason: reason, ExitCode: code, Signal: "SIGKILL", Duration: time.Since(x.o.started),
	}}, nil
}

func (x *execution) Close() error {
	defer x.o.end(arenero.Cancelled)
	return x.Execution.Close()
}

// maxWaiting is how many cells may wait for one kernel.
const maxWaiting = 64

// A queue lets one cell of a kernel run and the others wait, first come first
// served.
type queue struct {
	token   chan struct{}
	waiting int
}

// queue waits until the kernel is free and returns what frees it again.
func (y *body) queue(ctx context.Context, id, kernel string) (func(), error) {
	const op = "run cell"
	y.mu.Lock()
	q := y.queues[kernel]
	if q == nil {
		q = &queue{token: make(chan struct{}, 1)}
		y.queues[kernel] = q
	}
	if q.waiting >= maxWaiting {
		y.mu.Unlock()
		return nil, arenero.Errorf(arenero.Exhausted, op, kernel, "%d cells wait for this kernel", maxWaiting).
			WithHint("wait for earlier cells, or interrupt the kernel")
	}
	q.waiting++
	y.mu.Unlock()
	leave := func() {
		y.mu.Lock()
		defer y.mu.Unlock()
		if q.waiting--; q.waiting == 0 {
			delete(y.queues, kernel) // names come from callers: none may pile up
		}
	}
	select {
	case q.token <- struct{}{}:
		return func() { <-q.token; leave() }, nil
	case <-y.gone:
		leave()
		return nil, arenero.Errorf(arenero.Conflict, op, id, "the sandbox has ended or gone to sleep")
	case <-ctx.Done():
		leave()
		return nil, arenero.Errorf(arenero.Canceled, op, kernel, "the caller went away while waiting for the kernel")
	}
}

func checkCommand(c arenero.Command) error {
	const op = "start command"
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return arenero.Errorf(arenero.Invalid, op, "", "argv is empty")
	}
	total := 0
	for _, a := range c.Argv {
		total += len(a) + 1
		for i := range len(a) {
			if a[i] == 0 {
				return arenero.Errorf(arenero.Invalid, op, "", "an argument has a NUL byte")
			}
		}
	}
	if int64(total) > 1*arenero.MiB || len(c.Argv) > 4096 {
		return arenero.Errorf(arenero.TooLarge, op, "", "%d arguments of %d bytes, at most 4096 of 1 MiB together", len(c.Argv), total)
	}
	return CheckEnv(c.Env)
}
