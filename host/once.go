package host

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// onceGrace is how far past its timeout a one-shot run may answer: the answer
// has to be there within a second of the deadline.
const onceGrace = 750 * time.Millisecond

// A Job is one run in a sandbox of its own.
type Job struct {
	Spec     arenero.Spec
	Language string // of the kernel; "" is python
	Code     string // run as a cell, or as a script if Script is set
	Script   *arenero.Script
	Argv     []string      // a command to run instead of code
	Dir      string        // of the command
	Stdin    io.Reader     // of the command; of code, see Script
	Timeout  time.Duration // of the run alone; 0 is the limits' default
	Files    []JobFile     // written before

	// What the caller wants to see while it goes on; may be nil. An error ends
	// the run and is returned.
	OnStart   func(arenero.Sandbox)
	OnKernel  func(arenero.KernelEvent) error
	OnProcess func(arenero.ProcessEvent) error
	// Interrupt, when it yields, interrupts the run as Ctrl-C would; the sandbox
	// lives on until the run ends.
	Interrupt <-chan struct{}
	// Before and After are called with the guest when the files are in place, and
	// when the run has ended, to bring in and to take out what is needed.
	Before, After func(context.Context, arenero.Guest) error
}

// A JobFile is a file that a job finds in its sandbox. Path is relative to the
// work directory, or absolute.
type JobFile struct {
	Path string
	Mode fs.FileMode // 0 is 0644
	Data io.Reader
}

// RunOnce makes a sandbox, runs one thing in it and ends it, however the run
// ended. When it returns, the end of the sandbox is done or at least begun, and
// [Host.Close] waits for it.
//
// A run that fails is no error: its Result says so. An error means that it could
// not be run, or not be followed to its end.
func (h *Host) RunOnce(ctx context.Context, who Who, j Job) (res arenero.Result, err error) {
	timeout := j.Timeout
	if timeout < 0 || timeout > arenero.MaxTimeout {
		return res, arenero.Errorf(arenero.Invalid, "check timeout", "", "timeout is %v, must be between 0 and %v", timeout, arenero.MaxTimeout)
	}
	j.Spec.Lifetime = min(timeout+j.Spec.Limits.WithDefaults().Timeout+10*time.Minute, h.MaxLifetime)
	b, err := h.create(ctx, who, j.Spec)
	if err != nil {
		return res, err
	}
	defer func() {
		reason := "the run is over"
		if err != nil {
			reason = "the run was given up"
		}
		h.endWithin(ctx, b, reason)
	}()
	if j.OnStart != nil {
		j.OnStart(b.sandbox())
	}
	raw, err := h.guestOf(ctx, b)
	if err != nil {
		return res, err
	}
	g := raw.(*guest) //nolint:errcheck // guestOf makes no other
	g.grace = onceGrace
	if err := j.prepare(ctx, g); err != nil {
		return res, err
	}
	c := NewCollector(b.sandbox().Limits.Output)
	if len(j.Argv) > 0 {
		err = j.command(ctx, g, c)
	} else {
		err = j.cell(ctx, h, g, c)
	}
	if err != nil {
		return res, err
	}
	if j.After != nil && b.state() == arenero.Running {
		if err := j.After(ctx, g); err != nil {
			return c.Result(), err
		}
	}
	return c.Result(), nil
}

// endWithin ends a one-shot sandbox. It waits a moment, so that as a rule nothing
// is left when the caller gets its answer, but the answer does not wait for long.
func (h *Host) endWithin(ctx context.Context, b *box, reason string) {
	done := make(chan struct{})
	started := h.spawn(func() {
		defer close(done)
		b.turn.Lock()
		defer b.turn.Unlock()
		if err := h.end(ctx, b, reason, ""); err != nil {
			h.log.Error("end sandbox", "id", b.id(), "err", err)
		}
	})
	if !started {
		return // Close ends it
	}
	t := time.NewTimer(150 * time.Millisecond)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

func (j *Job) prepare(ctx context.Context, g *guest) error {
	for _, f := range j.Files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if _, err := g.WriteFile(ctx, "", f.Path, mode, f.Data); err != nil {
			return err
		}
	}
	if j.Before != nil {
		return j.Before(ctx, g)
	}
	return nil
}

func (j *Job) cell(ctx context.Context, h *Host, g *guest, c *Collector) error {
	language := Language(j.Language)
	if err := h.EnsureKernel(ctx, g, language, language); err != nil {
		return err
	}
	x, err := g.Execute(ctx, arenero.Execute{Kernel: language, Code: j.Code, Timeout: j.Timeout, Script: j.Script})
	if err != nil {
		return err
	}
	defer x.Close()
	defer j.interrupts(func() { _ = g.InterruptKernel(ctx, language) })() // the run's end tells
	return CollectExecution(x, c, j.OnKernel)
}

func (j *Job) command(ctx context.Context, g *guest, c *Collector) error {
	p, err := g.Start(ctx, arenero.Command{Argv: j.Argv, Dir: j.Dir, Stdin: j.Stdin != nil, Timeout: j.Timeout})
	if err != nil {
		return err
	}
	defer p.Close()
	defer j.interrupts(func() { _ = g.Signal(ctx, p.PID(), "SIGINT", true) })() // likewise
	if j.Stdin != nil {
		fed := make(chan struct{})
		defer func() { <-fed }()
		in := &stoppable{r: j.Stdin, stop: make(chan struct{})}
		defer close(in.stop)
		go func() { // joined above
			defer close(fed)
			feed(p, in)
		}()
	}
	return CollectProcess(p, c, j.OnProcess)
}

// feed gives a process its input. A process that does not want it is no error.
func feed(p arenero.Process, in *stoppable) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.next(buf)
		if n > 0 {
			if _, werr := p.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			_ = p.CloseStdin() // its end tells
			return
		}
	}
}

// stoppable reads from a reader that may block for ever, such as a terminal, but
// not longer than until stop is closed.
type stoppable struct {
	r    io.Reader
	stop chan struct{}
}

func (s *stoppable) next(buf []byte) (int, error) {
	type got struct {
		n   int
		err error
	}
	if b, ok := s.r.(*bytes.Reader); ok { // never blocks
		return b.Read(buf)
	}
	c := make(chan got, 1)
	mine := make([]byte, len(buf))
	go func() { // ends with the read; nobody can join a read of a terminal
		n, err := s.r.Read(mine)
		c <- got{n, err}
	}()
	select {
	case g := <-c:
		return copy(buf, mine[:g.n]), g.err
	case <-s.stop:
		return 0, io.EOF
	}
}

// interrupts passes on what comes from j.Interrupt until the function it returns
// is called.
func (j *Job) interrupts(f func()) (stop func()) {
	if j.Interrupt == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // joined by stop
		defer close(done)
		for {
			select {
			case _, ok := <-j.Interrupt:
				if !ok {
					return
				}
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// Language returns the name we use for a language, and for its default kernel.
func Language(s string) string {
	switch l := strings.ToLower(strings.TrimSpace(s)); l {
	case "", "py", "python3":
		return "python"
	case "sh", "shell":
		return "bash"
	case "js", "node":
		return "javascript"
	default:
		return l
	}
}
