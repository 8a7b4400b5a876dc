package jupyter

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

const (
	// timeoutGrace is what an interrupted cell has to end by itself after its time
	// is up; then its kernel is killed.
	timeoutGrace = 500 * time.Millisecond
	// cancelGrace is the same after its caller went away. It is longer, because
	// nobody waits and variables are dear.
	cancelGrace = 5 * time.Second
	// interruptAgain repeats an interrupt: one that comes while the kernel prepares
	// the cell is lost.
	interruptAgain = 100 * time.Millisecond
	// idleGrace is how long the end of output is awaited once the reply is there.
	idleGrace = 2 * time.Second
	// replyGrace is how long the reply is awaited once the output has ended; then
	// the kernel is asked whether it is free. ipykernel gives no reply when an
	// exception's own text raises.
	replyGrace = 200 * time.Millisecond
)

// A cell is the request that a kernel works on now.
type cell struct {
	s     *session
	id    string
	queue *queue
	start time.Time

	mu      sync.Mutex
	done    bool
	begun   bool               // the kernel said that it runs
	pending bool               // interrupt it when it does
	asked   bool               // somebody interrupted it
	why     arenero.ExitReason // why we stop it; "" while we do not
	since   time.Time          // when we began to stop it
	again   *time.Timer
}

// stop interrupts the cell until it ends, and kills the kernel when the grace is
// over. It is called from timers; the first reason stays.
func (c *cell) stop(why arenero.ExitReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	now := time.Now()
	if c.why == "" {
		c.why, c.since = why, now
	}
	grace := timeoutGrace
	if c.why == arenero.Cancelled && why == arenero.Cancelled {
		grace = cancelGrace
	}
	if now.Sub(c.since) >= grace {
		c.s.proc.KillTree()
		return
	}
	c.s.interrupt()
	if c.again != nil {
		c.again.Stop()
	}
	c.again = time.AfterFunc(interruptAgain, func() { c.stop(why) })
}

func (c *cell) reason() arenero.ExitReason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// runs notes that the kernel is in the cell, where an interrupt takes effect.
func (c *cell) runs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	if c.pending {
		c.pending = false
		c.s.interrupt()
	}
}

// finish ends all timers; no signal is sent after it returns.
func (c *cell) finish() {
	c.mu.Lock()
	c.done = true
	if c.again != nil {
		c.again.Stop()
	}
	c.mu.Unlock()
	c.s.mu.Lock()
	c.s.cell = nil
	c.s.mu.Unlock()
	c.queue.open()
}

// interruptCell stops the cell that runs, once.
func (s *session) interruptCell(context.Context) error {
	s.mu.Lock()
	c := s.cell
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	c.asked = true
	if !c.begun {
		c.pending = true
		return nil
	}
	if err := s.interrupt(); err != nil {
		return wrap(err, arenero.Internal, "interrupt kernel", s.name)
	}
	return nil
}

// fromIOPub takes what a kernel publishes.
func (s *session) fromIOPub(m message) {
	s.mu.Lock()
	if !s.heard && m.session == s.id {
		s.heard = true
		close(s.ready)
	}
	c := s.cell
	s.mu.Unlock()
	if c == nil || c.id != m.parent {
		return // of a cell that is over, or of nobody's
	}
	if m.kind == "execute_input" {
		c.runs()
	}
	c.queue.push(m)
}

// fromShell takes the answers of the shell and control sockets.
func (s *session) fromShell(m message) {
	s.mu.Lock()
	answer := s.waiting[m.parent]
	delete(s.waiting, m.parent)
	c := s.cell
	s.mu.Unlock()
	switch {
	case answer != nil:
		answer <- m // has room, and was the only one
	case c != nil && c.id == m.parent:
		c.queue.push(m)
	}
}

func (s *session) fromStdin(m message) {
	s.mu.Lock()
	c := s.cell
	s.mu.Unlock()
	if c != nil && c.id == m.parent {
		c.queue.push(m)
	}
}

// run sends a cell and handles its events until its end.
func (s *session) run(ctx context.Context, e arenero.Execute, answers <-chan string, on func(Event) error) error {
	stdin := e.AllowStdin && answers != nil && e.Script == nil
	content, undo, err := s.content(e, stdin)
	if err != nil {
		return err
	}
	defer undo()
	id, frames, err := s.sign.encode("execute_request", s.id, content)
	if err != nil {
		return arenero.Errorf(arenero.Internal, "execute", s.name, "%w", err)
	}
	c := &cell{s: s, id: id, queue: newQueue(), start: time.Now(), begun: e.Silent}
	s.mu.Lock()
	s.cell = c
	s.mu.Unlock()
	defer c.finish()
	if err := s.shell.send(frames...); err != nil {
		return s.sendError(err)
	}
	stopCancel := context.AfterFunc(ctx, func() { c.stop(arenero.Cancelled) })
	defer stopCancel()
	if e.Timeout > 0 {
		t := time.AfterFunc(e.Timeout, func() { c.stop(arenero.TimedOut) })
		defer t.Stop()
	}
	r := &run{s: s, c: c, on: on, script: e.Script != nil, stdin: stdin}
	r.loop(answers)
	return r.err
}

// ping asks the kernel for a sign of life, behind all it was asked before.
func (s *session) ping() (pong <-chan message, forget func()) {
	id, frames, err := s.sign.encode("kernel_info_request", s.id, struct{}{})
	if err != nil {
		return nil, func() {}
	}
	c := make(chan message, 1)
	s.mu.Lock()
	s.waiting[id] = c
	s.mu.Unlock()
	if err := s.shell.send(frames...); err != nil {
		s.fail(err)
	}
	return c, func() {
		s.mu.Lock()
		delete(s.waiting, id)
		s.mu.Unlock()
	}
}

// A run is the reading side of one cell; all of it is one goroutine's.
type run struct {
	s      *session
	c      *cell
	on     func(Event) error
	script bool
	stdin  bool

	err      error // of on
	replied  bool
	idle     bool
	aborted  bool
	asking   bool // a request for input is open
	count    int
	failed   *ending
	displays int
	bytes    int64
	marked   bool
}

func (r *run) loop(answers <-chan string) {
	var late, silent <-chan time.Time
	var pong <-chan message
	for {
		var open <-chan string
		if r.asking {
			open = answers
		}
		select {
		case <-r.c.queue.ready:
			for _, m := range r.c.queue.take() {
				r.handle(m)
			}
		case <-r.s.gone:
			for _, m := range r.c.queue.take() {
				r.handle(m)
			}
			r.died()
			return
		case <-late:
			r.idle = true // it is known that the cell is over
		case <-silent:
			// Requests are served in order: an answer to this one means that the
			// cell is over, whoever said that it is idle.
			var forget func()
			pong, forget = r.s.ping()
			defer forget()
		case <-pong:
			r.replied, pong = true, nil
			if r.failed == nil {
				r.failed = &ending{reason: arenero.RaisedError, code: 1}
				r.note("the kernel gave no answer to the cell")
			}
		case a, ok := <-open:
			r.answer(a, ok)
		}
		switch {
		case r.replied && r.idle:
			r.end()
			return
		case r.replied && late == nil:
			t := time.NewTimer(idleGrace)
			defer t.Stop()
			late = t.C
		case r.idle && silent == nil:
			t := time.NewTimer(replyGrace)
			defer t.Stop()
			silent = t.C
		}
	}
}

// emit hands an event over. After the first error nothing more is, and the cell
// is stopped: nobody listens.
func (r *run) emit(e Event) {
	if r.err != nil {
		return
	}
	if err := r.on(e); err != nil {
		r.err = err
		r.c.stop(arenero.Cancelled)
	}
}

func (r *run) emitText(stderr bool, text []byte) {
	for len(text) > 0 {
		n := min(len(text), MaxPiece)
		if stderr {
			r.emit(Event{Stderr: text[:n]})
		} else {
			r.emit(Event{Stdout: text[:n]})
		}
		text = text[n:]
	}
}

func (r *run) note(format string, args ...any) {
	r.emitText(true, fmt.Appendf(nil, "arenero: "+format+"\n", args...))
}

func (r *run) handle(m message) {
	if m.dropped > 0 {
		r.note("a message of %d bytes was refused, at most %d are allowed", m.dropped, MaxMessage)
		if m.kind == "execute_reply" {
			r.replied = true
		}
		return
	}
	switch m.kind {
	case "stream":
		if name, text, ok := streamText(m.content); ok {
			r.emitText(name == "stderr", text)
		}
	case "display_data", "execute_result", "update_display_data":
		r.display(m)
	case "clear_output":
		var c arenero.ClearOutput
		if json.Unmarshal(m.content, &c) == nil {
			r.emit(Event{Clear: &c})
		}
	case "error":
		var f failure
		if json.Unmarshal(m.content, &f) == nil {
			r.fail(f)
		}
	case "status":
		var st struct {
			State string `json:"execution_state"`
		}
		if json.Unmarshal(m.content, &st) == nil && st.State == "idle" {
			r.idle = true
		}
	case "execute_reply":
		r.reply(m)
	case "input_request":
		r.input(m)
	}
}

func (r *run) display(m message) {
	var c struct {
		Data      map[string]json.RawMessage `json:"data"`
		Transient struct {
			ID string `json:"display_id"`
		} `json:"transient"`
	}
	if json.Unmarshal(m.content, &c) != nil || len(c.Data) == 0 {
		return
	}
	if r.displays == MaxDisplays || r.bytes+int64(len(m.content)) > MaxResults {
		if !r.marked {
			r.marked = true
			r.note("more than %d results or %d bytes of them: further ones are dropped", MaxDisplays, MaxResults)
		}
		return
	}
	r.displays++
	r.bytes += int64(len(m.content))
	d := &Display{Main: m.kind == "execute_result", ID: cut(c.Transient.ID, 1<<10)}
	d.MIME, d.Chart = bundle(c.Data)
	if m.kind == "update_display_data" {
		r.emit(Event{Update: d})
	} else {
		r.emit(Event{Display: d})
	}
}

// fail takes an error, from iopub or from the reply, whichever comes first.
func (r *run) fail(f failure) {
	if r.failed != nil && !r.script {
		return
	}
	e := classify(f)
	r.failed = &e
	if e.stderr != "" {
		r.emitText(true, []byte(e.stderr))
	}
	// An interrupt of ours is told as the end's reason.
	if e.shown && !(f.Name == "KeyboardInterrupt" && r.c.reason() != "") {
		r.emit(Event{Error: runError(f)})
	}
}

func (r *run) reply(m message) {
	var f failure
	if json.Unmarshal(m.content, &f) != nil {
		r.note("the kernel's answer could not be read")
		r.replied = true
		return
	}
	r.replied = true
	r.count = f.Count
	switch f.Status {
	case "error":
		r.fail(f)
	case "aborted", "abort":
		r.aborted = true
	}
	for i, p := range f.Payload { // the text of a question: print?
		if i < 16 && p.Source == "page" && len(p.Data) > 0 {
			d := &Display{}
			d.MIME, d.Chart = bundle(p.Data)
			r.emit(Event{Display: d})
		}
	}
}

func (r *run) input(m message) {
	if !r.stdin {
		r.answer("", false)
		return
	}
	var q arenero.InputRequest
	if json.Unmarshal(m.content, &q) != nil {
		r.answer("", false)
		return
	}
	q.Prompt = cut(q.Prompt, maxErrorText)
	r.asking = true
	r.emit(Event{Input: &q})
}

// answer sends a line to the kernel; without one it is the end of input, for
// which Jupyter's word is Ctrl-D.
func (r *run) answer(text string, ok bool) {
	r.asking = false
	if !ok {
		text = "\x04"
	}
	_, frames, err := r.s.sign.encode("input_reply", r.s.id, map[string]string{"value": text})
	if err != nil {
		return
	}
	if err := r.s.stdin.send(frames...); err != nil {
		r.s.fail(err)
	}
}

// end tells how a cell ended whose kernel lives.
func (r *run) end() {
	end := arenero.KernelEnd{Reason: arenero.Exited, ExecutionCount: r.count}
	if r.failed != nil {
		end.Reason, end.ExitCode = r.failed.reason, r.failed.code
	}
	r.c.mu.Lock()
	why, asked := r.c.why, r.c.asked
	r.c.mu.Unlock()
	switch {
	case why == arenero.TimedOut:
		end.Reason, end.ExitCode = why, 124
	case why != "", r.aborted, asked && end.Reason == arenero.RaisedError:
		end.Reason, end.ExitCode = arenero.Cancelled, 130
	}
	r.s.mu.Lock()
	if !r.script && r.count > r.s.count {
		r.s.count = r.count
	}
	r.s.mu.Unlock()
	r.finish(end)
}

// died tells how a cell ended with its kernel.
func (r *run) died() {
	x := r.s.proc.Exit()
	r.s.mu.Lock()
	broke, ended := r.s.why, r.s.ended
	r.s.mu.Unlock()
	end := arenero.KernelEnd{Reason: arenero.KernelDied, ExitCode: x.Code, Signal: x.Signal}
	switch why := r.c.reason(); {
	case x.OutOfMemory:
		end.Reason, end.ExitCode = arenero.OutOfMemory, 137
	case why == arenero.TimedOut:
		end.Reason, end.ExitCode = why, 124
	case why != "":
		end.Reason, end.ExitCode = why, 130
	case broke != nil:
		r.note("the kernel was killed: %.300s", broke)
	case ended != "":
		end.Reason = ended
	case r.script && x.Signal == "":
		end.Reason = arenero.Exited // os._exit: that is how the program wanted it
	default:
		if said := r.s.tail.lastLines(3); said != "" {
			r.note("the kernel died; it wrote: %s", said)
		}
	}
	r.finish(end)
}

func (r *run) finish(end arenero.KernelEnd) {
	end.Duration = time.Since(r.c.start)
	r.emit(Event{End: &end})
}
