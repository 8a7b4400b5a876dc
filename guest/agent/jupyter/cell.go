package jupyter

import (
	"context"
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
	// the cell is lost. Not too soon: one that comes while the kernel writes the
	// traceback of the first makes it print "KeyboardInterrupt" instead.
	interruptAgain = 300 * time.Millisecond
	// idleGrace is how long the kernel may say nothing between its reply and the end
	// of its output: the two come on different sockets, and the reply overtakes.
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
		_ = c.s.proc.KillTree() // what lives is seen again
		return
	}
	_ = c.s.interrupt() // a kernel that has gone needs none
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
		_ = c.s.interrupt() // a kernel that has gone needs none
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
		defer After(e.Timeout, func() { c.stop(arenero.TimedOut) }).Stop()
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
