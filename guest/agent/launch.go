package agent

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

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
