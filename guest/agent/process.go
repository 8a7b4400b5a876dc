package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
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

// launch is what start needs to know.
type launch struct {
	argv    []string
	env     map[string]string // on top of the sandbox's
	environ []string          // instead of it, when not nil
	dir     string
	user    string
	stdin   bool
	window  *wire.Window
	timeout time.Duration
	detach  bool
	tag     string
	keep    int64
	kernel  bool
	sink    io.Writer
}

func (a *Agent) launch(l launch) (*process, error) {
	const op = "start process"
	id := a.identity()
	if err := a.mayStart(l, id); err != nil {
		return nil, err
	}
	user, err := a.account(l.user)
	if err != nil {
		return nil, err
	}
	dir := id.path(l.dir)
	env := l.environ
	if env == nil {
		env = id.environ(user.User, l.env, l.window != nil)
	}
	p := &process{
		a: a, argv: l.argv, dir: dir, tag: l.tag, detach: l.detach, kernel: l.kernel, sink: l.sink,
		timeout: l.timeout, tty: l.window != nil, exited: make(chan struct{}), done: make(chan struct{}),
	}
	keep := l.keep
	if keep <= 0 {
		keep = 64 << 10
	}
	p.out = newOutput(min(keep, maxKeep))

	var path string
	var child [3]*os.File
	err = a.as(user, func() error { // so that the ends belong to the user, who may open them again
		var err error
		if path, err = lookPath(l.argv[0], dir, env); err != nil {
			return err
		}
		child, err = p.connect(l)
		return err
	})
	defer closeAll(child[:]...)
	if err != nil {
		p.closeEnds()
		return nil, startError(l.argv[0], err)
	}
	s, err := newSpawn(path, l.argv, env, dir)
	if err != nil {
		p.closeEnds()
		return nil, arenero.Errorf(arenero.Invalid, op, "", "an argument, the environment or the folder has a zero byte")
	}
	for i, f := range child {
		s.fds[i] = int(f.Fd())
	}
	s.tty, s.nnp = p.tty, !a.cfg.Init
	s.limits = a.rlimits(id.limits)
	if a.switches {
		p.mark = a.takeMark()
		s.change, s.uid, s.gid = true, user.UID, user.GID
		s.groups = append(append(s.groups, user.groups...), p.mark)
	}
	p.started = time.Now()
	if err := a.fork(s, p); err != nil {
		a.dropMark(p.mark)
		p.closeEnds()
		return nil, startError(l.argv[0], err)
	}
	a.guard.poke()
	a.wg.Go(p.run)
	return p, nil
}

func (a *Agent) mayStart(l launch, id identity) error {
	const op = "start process"
	switch {
	case len(l.argv) == 0 || l.argv[0] == "":
		return arenero.Errorf(arenero.Invalid, op, "", "no program is named")
	case !id.awake || id.warm && !l.kernel:
		return arenero.Errorf(arenero.Conflict, op, "", "the sandbox is not awake yet")
	}
	for k := range l.env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return arenero.Errorf(arenero.Invalid, op, "", "%.64q cannot name a variable", k)
		}
	}
	if w := l.window; w != nil && (w.GetCols() > 1<<15 || w.GetRows() > 1<<15) {
		return arenero.Errorf(arenero.Invalid, op, "", "a terminal of %d by %d", w.GetCols(), w.GetRows())
	}
	a.procMu.Lock()
	defer a.procMu.Unlock()
	if len(a.procs) >= maxProcesses {
		return arenero.Errorf(arenero.Exhausted, op, "", "%d processes run already", len(a.procs))
	}
	return nil
}

func startError(name string, err error) error {
	const op = "start process"
	var own *arenero.Error
	var sp *spawnError
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, unix.EAGAIN):
		return arenero.Errorf(arenero.Exhausted, op, "", "%.200q: the limit of processes is reached", name)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return arenero.Errorf(arenero.Exhausted, op, "", "%.200q: %w", name, err)
	case errors.Is(err, unix.ENOEXEC):
		return arenero.Errorf(arenero.Invalid, op, "", "%.200q is not a program this machine can run", name).
			WithHint("a script needs a first line such as #!/bin/sh")
	case errors.As(err, &sp), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return arenero.Errorf(arenero.Invalid, op, "", "%.200q: %w", name, err)
	}
	return arenero.Errorf(arenero.Internal, op, "", "%.200q: %w", name, err)
}

// lookPath finds a program as the shell does, with the rights of the calling
// thread.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil // exec says what is wrong with it, relative to dir
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := fs.ErrNotExist
	for d := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		file := d + "/" + name
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
			found = fs.ErrPermission
			continue
		}
		return file, nil
	}
	if errors.Is(found, fs.ErrNotExist) {
		return "", arenero.Errorf(arenero.Invalid, "start process", "", "%.200q is not found in PATH", name)
	}
	return "", found
}

// connect makes the pipes or the terminal. The child's ends are the caller's.
func (p *process) connect(l launch) (child [3]*os.File, err error) {
	if l.window != nil {
		master, slave, err := pty.Open()
		if err != nil {
			return child, err
		}
		_ = pty.Setsize(master, &pty.Winsize{Cols: uint16(l.window.GetCols()), Rows: uint16(l.window.GetRows())})
		if err := unix.SetNonblock(int(master.Fd()), true); err == nil {
			fd, derr := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			if derr == nil { // a file the poller knows, so that Close ends a Read
				_ = master.Close()
				master = os.NewFile(uintptr(fd), "terminal")
			}
		}
		p.in = master
		p.outs = []*pump{{f: master, stream: stdout, done: make(chan struct{})}}
		return [3]*os.File{slave, slave, slave}, nil
	}
	if l.stdin {
		if child[0], p.in, err = os.Pipe(); err != nil {
			return child, err
		}
	} else if child[0], err = os.Open("/dev/null"); err != nil {
		return child, err
	}
	for i := 1; i <= 2; i++ {
		var r *os.File
		if r, child[i], err = os.Pipe(); err != nil {
			return child, err
		}
		p.outs = append(p.outs, &pump{f: r, stream: i - 1, done: make(chan struct{})})
	}
	return child, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
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
	var expired <-chan time.Time
	if p.timeout > 0 {
		t := time.NewTimer(p.timeout)
		defer t.Stop()
		expired = t.C
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

// find returns a process by pid, also one that has just ended.
func (a *Agent) find(pid int64) (*process, error) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	if p := a.procs[int(pid)]; p != nil && !p.kernel {
		return p, nil
	}
	for _, p := range a.late {
		if int64(p.pid) == pid {
			return p, nil
		}
	}
	return nil, arenero.Errorf(arenero.NotFound, "find process", "", "no process of ours has the pid %d", pid)
}

// retire moves a process from the running to the ended.
func (a *Agent) retire(p *process) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	if a.procs[p.pid] == p {
		delete(a.procs, p.pid)
	}
	if p.kernel {
		return
	}
	a.late = append([]*process{p}, a.late[:min(len(a.late), maxEnded-1)]...)
}

// takeMark returns a group that no living program has.
func (a *Agent) takeMark() uint32 {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	for {
		a.lastMark = (a.lastMark + 1) & 0xffff
		m := firstMark + a.lastMark
		if !a.marks[m] {
			a.marks[m] = true
			return m
		}
	}
}

func (a *Agent) dropMark(m uint32) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	delete(a.marks, m)
}

// rlimits are what a child gets, never above what the agent itself has.
func (a *Agent) rlimits(l arenero.Limits) []limit {
	want := []limit{{unix.RLIMIT_CORE, 0, 0}}
	if l.OpenFiles > 0 {
		want = append(want, limit{unix.RLIMIT_NOFILE, uint64(l.OpenFiles), uint64(l.OpenFiles)})
	}
	if l.Processes > 0 {
		want = append(want, limit{unix.RLIMIT_NPROC, uint64(l.Processes), uint64(l.Processes)})
	}
	for i := range want {
		var have unix.Rlimit
		if unix.Getrlimit(want[i].resource, &have) == nil {
			want[i].max = min(want[i].max, have.Max)
			want[i].cur = min(want[i].cur, want[i].max)
		}
	}
	return want
}

// end cancels everything; used when the agent itself ends.
func (a *Agent) endProcesses(ctx context.Context) {
	a.procMu.Lock()
	list := make([]*process, 0, len(a.procs))
	for _, p := range a.procs {
		list = append(list, p)
	}
	a.procMu.Unlock()
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() {
			p.cancelled.Store(true)
			a.killTree(p)
			select {
			case <-p.done:
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}
