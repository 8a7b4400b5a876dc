package agent

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent/jupyter"
	"github.com/arenero/arenero/guest/wire"
)

const (
	maxProcesses = 1024    // running, at one time
	maxEnded     = 32      // ended ones kept for a late Attach
	maxKeep      = 4 << 20 // bytes of output kept of each stream
	killGrace    = 400 * time.Millisecond
	linger       = 250 * time.Millisecond // for those who hold a dead program's output open
)

// A process is a program the agent started.
type process struct {
	a       *Agent
	pid     int
	argv    []string
	dir     string
	tag     string
	detach  bool
	kernel  bool // not listed, not attached to
	mark    uint32
	started time.Time

	in      *os.File // our end of stdin, or the terminal; nil without
	inMu    sync.Mutex
	tty     bool
	outs    []*pump
	out     *output
	sink    io.Writer // instead of out
	exited  chan struct{}
	done    chan struct{} // exit is set, all output is in out
	status  unix.WaitStatus
	exit    *wire.ProcessExit
	timeout time.Duration

	timedOut, cancelled, outOfMemory atomic.Bool
}

// A pump moves one stream of a process.
type pump struct {
	f       *os.File
	stream  int
	waiting atomic.Int64 // since when it waits for bytes, in unix nanos; 0 while it does not
	done    chan struct{}
}

func (p *process) closeEnds() {
	p.inMu.Lock()
	closeAll(p.in)
	p.in = nil
	p.inMu.Unlock()
	for _, m := range p.outs {
		_ = m.f.Close()
	}
}

// ended is called once, when the process was waited for.
func (p *process) ended(status unix.WaitStatus) {
	select {
	case <-p.exited: // an orphan that got the same pid
	default:
		p.status = status
		close(p.exited)
	}
}

// run sees the process through to its end. It owns the pumps.
func (p *process) run() {
	var pumps sync.WaitGroup
	for _, m := range p.outs {
		pumps.Go(func() { p.pump(m) })
	}
	expired := make(chan struct{})
	if p.timeout > 0 {
		defer jupyter.After(p.timeout, func() { close(expired) }).Stop()
	}
	select {
	case <-p.exited:
	case <-expired:
		p.timedOut.Store(true)
		p.terminate()
		<-p.exited
	}
	ran := time.Since(p.started)
	reason := p.reason() // before those who used up a limit are killed
	drained := p.drain()
	if !drained && !p.detach {
		p.a.killTree(p)
		drained = p.drain()
	}
	if !drained && !p.detach {
		p.closeEnds()
	}
	p.exit = p.result(reason, ran)
	p.out.end(p.exit)
	p.a.retire(p)
	close(p.done)
	if !p.detach {
		p.a.killTree(p)
	}
	pumps.Wait()
	p.closeEnds()
	p.a.dropMark(p.mark)
}

// pump moves a stream until its end. It waits while readers are slow, and then the
// process does.
func (p *process) pump(m *pump) {
	defer close(m.done)
	buf := make([]byte, 4<<10)
	for {
		m.waiting.Store(time.Now().UnixNano())
		n, err := m.f.Read(buf)
		m.waiting.Store(0)
		if n > 0 {
			if p.sink != nil {
				_, _ = p.sink.Write(buf[:n])
			} else {
				p.out.write(m.stream, buf[:n])
			}
			if n == len(buf) && n < piece {
				buf = make([]byte, piece)
			}
		}
		if err != nil { // io.EOF, or EIO when a terminal's last user has gone
			return
		}
	}
}

// drain waits until the pumps are through. False means that they wait for bytes
// that do not come: somebody holds the other end open.
func (p *process) drain() bool {
	for _, m := range p.outs {
		for finished := false; !finished; {
			select {
			case <-m.done:
				finished = true
			case <-time.After(linger / 5):
				since := m.waiting.Load()
				if since != 0 && time.Since(time.Unix(0, since)) > linger {
					return false
				}
			}
		}
	}
	return true
}

// terminate asks everything that belongs to the process to end, and soon after
// makes it.
func (p *process) terminate() {
	p.a.signalTree(p, unix.SIGTERM)
	p.a.signalTree(p, unix.SIGCONT)
	select {
	case <-p.exited:
	case <-time.After(killGrace):
	}
	p.a.killTree(p)
}

// cancel ends the process on behalf of its caller.
func (p *process) cancel() {
	p.cancelled.Store(true)
	select {
	case <-p.exited:
	default:
		p.terminate()
	}
}

func (p *process) result(reason arenero.ExitReason, ran time.Duration) *wire.ProcessExit {
	e := &wire.ProcessExit{DurationUs: ran.Microseconds(), Reason: string(reason), Code: int32(p.status.ExitStatus())}
	if p.status.Signaled() {
		e.Code = 128 + int32(p.status.Signal())
		e.Signal = unix.SignalName(p.status.Signal())
	}
	// The end of the output may only now be known.
	if e.GetReason() == string(arenero.Exited) && e.GetCode() != 0 {
		e.Reason = string(p.fullReason(arenero.Exited))
	}
	return e
}

// reason says why the process ended, as far as is known before its output has
// been drained.
func (p *process) reason() arenero.ExitReason {
	bad := p.status.Signaled() || p.status.ExitStatus() != 0
	switch {
	case p.timedOut.Load():
		return arenero.TimedOut
	case p.outOfMemory.Load() && bad:
		return arenero.OutOfMemory
	case p.cancelled.Load():
		return arenero.Cancelled
	case p.status.Signaled():
		return arenero.WasKilled
	case bad:
		// Counted now: its own children may be what fills the table.
		if n := p.a.guard.countTasks(); n > 0 {
			p.a.guard.sawTasks(n)
		}
	}
	return arenero.Exited
}

// fullReason tells a full disk and a full process table by two signs each: what
// the program said, and what the agent saw while it ran.
func (p *process) fullReason(otherwise arenero.ExitReason) arenero.ExitReason {
	said := p.out.tail(stderr)
	if p.tty {
		said = p.out.tail(stdout)
	}
	has := func(words ...string) bool {
		for _, w := range words {
			if bytes.Contains(said, []byte(w)) {
				return true
			}
		}
		return false
	}
	switch {
	case has("No space left on device", "ENOSPC", "Disk quota exceeded") && p.a.guard.diskWasFull(p.started):
		return arenero.DiskFull
	case has("can't start new thread"), // Python's own words for it, and nothing else's
		has("Resource temporarily unavailable", "EAGAIN", "Cannot fork", "can't fork", "retry: ") && p.a.guard.tasksWereFull(p.started):
		return arenero.ProcessLimit
	}
	return otherwise
}

// write sends to stdin or to the terminal. It blocks while the process is slow.
func (p *process) write(b []byte) error {
	p.inMu.Lock()
	f := p.in
	p.inMu.Unlock()
	if f == nil {
		return arenero.Errorf(arenero.Conflict, "write to process", "", "its input is closed")
	}
	if _, err := f.Write(b); err != nil {
		return arenero.Errorf(arenero.Conflict, "write to process", "", "%w", err)
	}
	return nil
}

func (p *process) closeStdin() {
	p.inMu.Lock()
	defer p.inMu.Unlock()
	if p.in == nil {
		return
	}
	if p.tty {
		_, _ = p.in.Write([]byte{4}) // ^D: a terminal has no other end
		return
	}
	_ = p.in.Close()
	p.in = nil
}

func (p *process) resize(w *wire.Window) error {
	p.inMu.Lock()
	defer p.inMu.Unlock()
	if !p.tty || p.in == nil {
		return arenero.Errorf(arenero.Invalid, "resize terminal", "", "the process has none")
	}
	return pty.Setsize(p.in, &pty.Winsize{Cols: uint16(min(w.GetCols(), 1<<15)), Rows: uint16(min(w.GetRows(), 1<<15))})
}
