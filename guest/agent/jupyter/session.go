package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/arenero/arenero"
)

// drainTime is how long a dead kernel's sockets are read on: what it said last is
// in them, but a child it left behind may keep them open.
const drainTime = 300 * time.Millisecond

// A session is one interpreter, from its start to its end.
type session struct {
	name   string // of the kernel
	spec   spec
	dir    string // ours: connection file, sockets, configuration
	work   string // where it started
	id     string // the Jupyter session of our requests
	sign   *signer
	proc   Proc
	tail   *tail
	ready  chan struct{} // closed when iopub reaches us
	gone   chan struct{} // closed when it has ended and all it said was delivered
	joined sync.WaitGroup

	shell, control, stdin, iopub *zconn

	mu      sync.Mutex
	heard   bool
	why     error              // why we killed it, when it broke the protocol
	ended   arenero.ExitReason // why we killed it, when somebody asked
	waiting map[string]chan message
	cell    *cell
	count   int
}

// startSession starts an interpreter and returns when it answers.
func startSession(ctx context.Context, k *kernel) (_ *session, err error) {
	const op = "start kernel"
	ctx, cancel := context.WithTimeout(ctx, k.m.cfg.StartTimeout)
	defer cancel()
	s := &session{
		name: k.name, spec: k.spec, id: newID(), tail: &tail{},
		ready: make(chan struct{}), gone: make(chan struct{}), waiting: map[string]chan message{},
	}
	defer func() {
		if err == nil {
			return
		}
		s.abandon()
		if arenero.CodeOf(err) == arenero.Internal && ctx.Err() != nil {
			err = ctxError(ctx, op, k.name)
		}
	}()
	if err := s.prepare(&k.m.cfg); err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, k.name, "prepare its folder: %w", err)
	}
	k.mu.Lock()
	s.work = k.dir
	k.mu.Unlock()
	if s.work == "" {
		s.work = k.m.cfg.Workdir()
	}
	s.proc, err = k.m.cfg.Start(ctx, Cmd{
		Argv: s.argv(), Env: s.environ(&k.m.cfg, k.env), Dir: s.work, Tag: "kernel " + k.name, Output: s.tail,
	})
	if err != nil {
		return nil, wrap(err, arenero.Unavailable, op, k.name)
	}
	if err := s.connect(ctx, &k.m.cfg); err != nil {
		return nil, s.startError(err)
	}
	if err := s.greet(ctx); err != nil {
		return nil, s.startError(err)
	}
	return s, nil
}

// startError says what the interpreter wrote before it gave up: that is where the
// missing module stands.
func (s *session) startError(err error) error {
	e := arenero.Errorf(arenero.Unavailable, "start kernel", s.name, "%w", err)
	if said := s.tail.lastLines(4); said != "" {
		return e.WithHint("the kernel wrote: %s", said)
	}
	return e
}

// prepare makes the session's folder with its connection file and configuration.
func (s *session) prepare(cfg *Config) error {
	u := cfg.User()
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return err
	}
	var err error
	if s.dir, err = os.MkdirTemp(cfg.RunDir, "k"); err != nil {
		return err
	}
	if n := len(s.socket(5)); n > 107 {
		return fmt.Errorf("the path of a socket has %d bytes, more than a unix socket's 107", n)
	}
	key := newID() + newID()
	s.sign = newSigner(key)
	conn, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": s.dir + "/k", "key": key, "signature_scheme": "hmac-sha256", "kernel_name": s.spec.name,
		"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
	})
	if err != nil {
		return err
	}
	if err := writeBoot(filepath.Join(s.dir, "ipython")); err != nil {
		return err
	}
	if err := os.WriteFile(s.connectionFile(), conn, 0o600); err != nil {
		return err
	}
	if int(u.UID) == os.Geteuid() && int(u.GID) == os.Getegid() {
		return nil
	}
	// The kernel makes its sockets in here and IPython its profile, so all of it
	// is the user's. From the first change on he may put links in here: a Root does
	// not follow one outside.
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(u.UID), int(u.GID))
	})
}

func (s *session) connectionFile() string { return filepath.Join(s.dir, "connection.json") }

func (s *session) argv() []string {
	fill := strings.NewReplacer("{connection_file}", s.connectionFile(), "{resource_dir}", s.spec.dir, "{prefix}", "/usr",
		"{arenero}", filepath.Join(s.dir, "ipython", "profile_default"))
	argv := make([]string, len(s.spec.Argv))
	for i, a := range s.spec.Argv {
		argv[i] = fill.Replace(a)
	}
	return argv
}

// environ is the sandbox's environment, ours, the spec's and the kernel's own;
// later ones win.
func (s *session) environ(cfg *Config, own map[string]string) []string {
	var env []string
	seen := map[string]int{}
	set := func(k, v string) {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return
		}
		if i, ok := seen[k]; ok {
			env[i] = k + "=" + v
			return
		}
		seen[k] = len(env)
		env = append(env, k+"="+v)
	}
	set("MPLBACKEND", "module://matplotlib_inline.backend_inline")
	set("PYTHONUNBUFFERED", "1")
	set("PYDEVD_DISABLE_FILE_VALIDATION", "1") // a warning of the debugger nobody asked for
	set("JUPYTER_PLATFORM_DIRS", "1")          // a warning of jupyter_core
	for _, kv := range cfg.Env() {
		k, v, _ := strings.Cut(kv, "=")
		set(k, v)
	}
	for k, v := range s.spec.Env {
		set(k, os.Expand(v, func(name string) string {
			if i, ok := seen[name]; ok {
				return env[i][len(name)+1:]
			}
			return "${" + name + "}"
		}))
	}
	for k, v := range own {
		set(k, v)
	}
	set("IPYTHONDIR", filepath.Join(s.dir, "ipython"))
	set("JUPYTER_RUNTIME_DIR", s.dir)
	return env
}

// fail kills an interpreter that broke the protocol. If it is dead or dying anyway
// that stays the reason.
func (s *session) fail(err error) {
	select {
	case <-s.proc.Done():
		return
	default:
	}
	// A socket ends a moment before its process is waited for.
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-s.proc.Done():
		return
	case <-t.C:
	}
	s.mu.Lock()
	if s.why == nil && s.ended == "" {
		s.why = fmt.Errorf("it broke the protocol: %w", err)
	}
	s.mu.Unlock()
	_ = s.proc.KillTree()
}

// watch waits for the end of the process, then for the last of what it said.
func (s *session) watch() {
	<-s.proc.Done()
	_ = s.proc.KillTree() // what it left behind
	soon := time.Now().Add(drainTime)
	for _, z := range s.conns() {
		_ = z.c.SetReadDeadline(soon) // a closed one reads no more
	}
	s.joined.Wait()
	for _, z := range s.conns() {
		z.close()
	}
	os.RemoveAll(s.dir)
	close(s.gone)
}

// end kills the interpreter and waits until nothing of it is left.
func (s *session) end(why arenero.ExitReason) {
	s.mu.Lock()
	if s.ended == "" {
		s.ended = why
	}
	c := s.cell
	s.mu.Unlock()
	if c != nil {
		c.queue.open() // its reader may have gone
	}
	_ = s.proc.KillTree()
	select {
	case <-s.gone:
	case <-time.After(5 * time.Second): // a process in uninterruptible sleep
	}
}

// abandon cleans up after a start that came to nothing.
func (s *session) abandon() {
	if s.proc != nil {
		_ = s.proc.KillTree()
		select {
		case <-s.proc.Done():
		case <-time.After(5 * time.Second):
		}
	}
	if s.shell != nil { // watch runs
		<-s.gone
		return
	}
	for _, z := range s.conns() {
		z.close()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// cause says how it ended; valid once gone is closed.
func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return s.why
	}
	x := s.proc.Exit()
	switch {
	case x.OutOfMemory:
		return errors.New("it ran out of memory")
	case s.ended != "":
		return errors.New("it was ended")
	case x.Signal != "":
		return fmt.Errorf("it was ended by %s", x.Signal)
	}
	return fmt.Errorf("it exited with status %d", x.Code)
}

func (s *session) state() (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.proc.Done():
		return "dead", s.count
	default:
	}
	if s.cell != nil {
		return "busy", s.count
	}
	return "idle", s.count
}

// interrupt stops what runs, the way the kernelspec asks for.
func (s *session) interrupt() error {
	if s.spec.Interrupt == "message" {
		_, frames, err := s.sign.encode("interrupt_request", s.id, struct{}{})
		if err != nil {
			return err
		}
		return s.control.send(frames...)
	}
	return s.proc.Signal(syscall.SIGINT)
}

// wrap gives an error a code if it has none.
func wrap(err error, code arenero.Code, op, id string) error {
	if _, ok := errors.AsType[*arenero.Error](err); ok {
		return err
	}
	return arenero.Errorf(code, op, id, "%w", err)
}
