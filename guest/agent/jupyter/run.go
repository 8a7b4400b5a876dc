package jupyter

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/arenero/arenero"
)

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
	idleAt   time.Time
	aborted  bool
	asking   bool // a request for input is open
	count    int
	failed   *ending
	reported *failure // by the reply
	displays int
	bytes    int64
	marked   bool
}

// earlyIdle is how long before the reply an idle may come and still be the
// kernel's own.
const earlyIdle = 20 * time.Millisecond

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
			late = nil
		case <-r.s.gone:
			for _, m := range r.c.queue.take() {
				r.handle(m)
			}
			r.died()
			return
		case <-late:
			// Only silence counts: output may have waited for a slow reader.
			items := r.c.queue.take()
			for _, m := range items {
				r.handle(m)
			}
			if late = nil; len(items) == 0 {
				r.idle = true // it is known that the cell is over
			}
		case <-silent:
			// Requests are served in order: an answer to this one means that the
			// cell is over, whoever said that it is idle.
			var forget func()
			pong, forget = r.s.ping()
			defer forget()
		case <-pong:
			for _, m := range r.c.queue.take() { // the reply came before the pong
				r.handle(m)
			}
			if pong = nil; !r.replied {
				r.unanswered()
			}
		case a, ok := <-open:
			r.answer(a, ok)
		}
		switch {
		case r.replied && r.idle:
			r.end()
			return
		case r.replied && late == nil:
			late = time.After(idleGrace)
		case r.idle && silent == nil:
			t := time.NewTimer(replyGrace)
			defer t.Stop()
			silent = t.C
		}
	}
}

// unanswered ends a cell that is over, as the kernel's next answer proves, though
// it was never replied to.
func (r *run) unanswered() {
	r.replied = true
	if r.failed == nil {
		r.failed = &ending{reason: arenero.RaisedError, code: 1}
		r.notef("the kernel gave no answer to the cell")
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

func (r *run) notef(format string, args ...any) {
	r.emitText(true, fmt.Appendf(nil, "arenero: "+format+"\n", args...))
}

func (r *run) handle(m message) {
	if m.dropped > 0 {
		r.notef("a message of %d bytes was refused, at most %d are allowed", m.dropped, MaxMessage)
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
			r.idle, r.idleAt = true, time.Now()
		}
	case "execute_reply":
		// The kernel says that it is idle after it has replied. The two come on
		// different sockets, but not this far apart: the cell itself said it.
		if r.idle && time.Since(r.idleAt) > earlyIdle {
			r.idle = false
		}
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
			r.notef("more than %d results or %d bytes of them: further ones are dropped", MaxDisplays, MaxResults)
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
		r.notef("the kernel's answer could not be read")
		r.replied = true
		return
	}
	r.replied = true
	r.count = f.Count
	switch f.Status {
	case "error":
		// What the kernel publishes says more; it comes on another socket, and
		// perhaps later.
		r.reported = &f
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
	if r.failed == nil && r.reported != nil {
		r.fail(*r.reported)
	}
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
		r.notef("the kernel was killed: %.300s", broke)
	case ended != "":
		end.Reason = ended
	case r.script && x.Signal == "":
		end.Reason = arenero.Exited // os._exit: that is how the program wanted it
	default:
		if said := r.s.tail.lastLines(3); said != "" {
			r.notef("the kernel died; it wrote: %s", said)
		}
	}
	r.finish(end)
}

func (r *run) finish(end arenero.KernelEnd) {
	end.Duration = time.Since(r.c.start)
	r.emit(Event{End: &end})
}
