package jupyter

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"sort"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// Bounds of what one kernel and one cell may ask of the agent.
const (
	MaxKernels  = 64        // names a sandbox may have
	MaxCode     = 16 << 20  // bytes of one cell
	MaxMessage  = 64 << 20  // bytes of one message of a kernel; a larger one is refused
	MaxDisplays = 10_000    // rich results of one cell; further ones are dropped, with a mark
	MaxResults  = 256 << 20 // bytes of all rich results of one cell
	MaxPiece    = 256 << 10 // bytes of one Stdout or Stderr event
	MaxChart    = 1 << 20   // bytes of one chart description
)

// Config is what a [Manager] needs of the agent around it.
type Config struct {
	// Start starts a kernel's process as the sandbox's user.
	Start Starter
	// SpecDirs are the folders that hold kernelspecs, first match wins; nil is
	// where Jupyter looks by itself.
	SpecDirs []string
	// RunDir is a folder of ours for connection files and sockets. It is made if
	// it is missing; its path must be short (a unix socket's is at most 107 bytes).
	RunDir string
	// Dial connects to a unix socket with the user's rights; nil dials plainly.
	Dial func(ctx context.Context, path string) (net.Conn, error)
	// User is who kernels run as, asked at each start; nil is this process.
	User func() arenero.User
	// Workdir is where a kernel starts that names no folder; nil is RunDir.
	Workdir func() string
	// Env is the environment of the sandbox as "K=V"; nil is PATH and LANG only.
	Env func() []string
	// StartTimeout bounds the start of an interpreter; 0 is 60 s.
	StartTimeout time.Duration
	// Log is for the operator; nil discards.
	Log *slog.Logger
}

// Cmd is a process to start.
type Cmd struct {
	Argv []string // Argv[0] is looked up in PATH of Env
	Env  []string // all of it, "K=V"
	Dir  string
	Tag  string // "kernel NAME"
	// Output gets what the process writes to its own stdout and stderr, in any
	// order and from any goroutine, but not after Done is closed. It never blocks.
	// Standard input is empty.
	Output io.Writer
}

// A Starter starts a process as the sandbox's user, in a session of its own.
type Starter func(ctx context.Context, c Cmd) (Proc, error)

// Proc is a running process.
type Proc interface {
	PID() int
	// Done is closed when the process has ended and was waited for.
	Done() <-chan struct{}
	// Exit says how it ended; valid once Done is closed.
	Exit() ProcExit
	// Signal sends a signal to the process group it leads.
	Signal(sig os.Signal) error
	// KillTree kills the process and all that descend from it.
	KillTree() error
}

// ProcExit is how a process ended.
type ProcExit struct {
	Code        int    // its status, or 128 + signal
	Signal      string // "SIGKILL"; "" when it exited by itself
	OutOfMemory bool   // the agent's memory guard or the kernel's OOM killer ended it
}

// An Event is one thing that happened while a cell ran; one field is set.
type Event struct {
	Stdout, Stderr []byte   // at most MaxPiece; UTF-8 may be cut between two events
	Display        *Display // display_data, execute_result
	Update         *Display // update_display_data, by its ID
	Clear          *arenero.ClearOutput
	Input          *arenero.InputRequest // answer through the channel given to Execute
	Error          *arenero.RunError
	End            *arenero.KernelEnd // the last event
}

// A Display is one rich result: the same thing in several MIME types.
type Display struct {
	MIME  map[string]string // binary types are base64, JSON types JSON text
	Main  bool              // the value of the last expression
	ID    string            // for updates
	Chart []byte            // JSON of an arenero.Chart, valid and at most MaxChart; nil when none
}

// A Seed is what makes a restored kernel differ from its siblings.
type Seed struct {
	Entropy []byte            // at least 32 fresh random bytes
	Env     map[string]string // set in the running interpreter, on top of what it has
	Dir     string            // "" leaves the work directory
}

// A Manager holds the kernels of one sandbox. All methods may be called from any
// number of goroutines; all errors are *arenero.Error.
type Manager struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	closed  bool
	kernels map[string]*kernel
}

// New makes a Manager; it does nothing until it is asked to. Close it.
func New(cfg Config) *Manager {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, path string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	}
	if cfg.User == nil {
		cfg.User = func() arenero.User {
			return arenero.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: os.Getenv("HOME")}
		}
	}
	if cfg.Workdir == nil {
		cfg.Workdir = func() string { return cfg.RunDir }
	}
	if cfg.Env == nil {
		cfg.Env = func() []string {
			return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
		}
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 60 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: cfg, log: cfg.Log, kernels: map[string]*kernel{}}
}

var goodName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// Start starts an interpreter under a name of its own and returns when it is
// ready for a cell. [arenero.NotFound] for a language the image lacks,
// [arenero.Conflict] for a name in use, [arenero.Exhausted] beyond MaxKernels.
func (m *Manager) Start(ctx context.Context, r arenero.KernelRequest) (arenero.KernelInfo, error) {
	const op = "start kernel"
	if !goodName.MatchString(r.Name) {
		return arenero.KernelInfo{}, arenero.Errorf(arenero.Invalid, op, "",
			"the name %.70q is not 1 to 64 of letters, digits, dot, dash and underscore", r.Name)
	}
	sp, err := m.spec(r.Language)
	if err != nil {
		return arenero.KernelInfo{}, err
	}
	k := &kernel{m: m, name: r.Name, spec: sp, dir: r.Dir, env: r.Env, turn: make(chan struct{}, 1)}
	m.mu.Lock()
	switch {
	case m.closed:
		err = arenero.Errorf(arenero.Unavailable, op, r.Name, "the sandbox is ending")
	case m.kernels[r.Name] != nil:
		err = arenero.Errorf(arenero.Conflict, op, r.Name, "a kernel of this name exists")
	case len(m.kernels) >= MaxKernels:
		err = arenero.Errorf(arenero.Exhausted, op, r.Name, "a sandbox has at most %d kernels", MaxKernels)
	default:
		m.kernels[r.Name] = k
	}
	m.mu.Unlock()
	if err != nil {
		return arenero.KernelInfo{}, err
	}
	if err := k.start(ctx); err != nil {
		m.forget(k)
		k.stop()
		return arenero.KernelInfo{}, err
	}
	return k.info(), nil
}

// List describes the kernels, by name.
func (m *Manager) List() []arenero.KernelInfo {
	ks := m.all()
	infos := make([]arenero.KernelInfo, 0, len(ks))
	for _, k := range ks {
		infos = append(infos, k.info())
	}
	return infos
}

// Stop ends a kernel and all it started, and frees its name.
func (m *Manager) Stop(_ context.Context, name string) error {
	k, err := m.kernel("stop kernel", name)
	if err != nil {
		return err
	}
	m.forget(k)
	k.stop()
	return nil
}

// Restart gives the name a fresh interpreter, also when the old one is dead. A
// cell that runs ends as killed.
func (m *Manager) Restart(ctx context.Context, name string) error {
	k, err := m.kernel("restart kernel", name)
	if err != nil {
		return err
	}
	return k.restart(ctx)
}

// Interrupt stops the running cell; variables stay. A kernel that runs none is
// left alone.
func (m *Manager) Interrupt(ctx context.Context, name string) error {
	k, err := m.kernel("interrupt kernel", name)
	if err != nil {
		return err
	}
	s, err := k.live("interrupt kernel")
	if err != nil {
		return err
	}
	return s.interruptCell(ctx)
}

// Execute runs a cell and hands its events to on, in order, in the calling
// goroutine; the last one has End set. Cells of one kernel run one after another
// in the order of the calls. An error of on, or the end of ctx, interrupts the
// cell, and kills the kernel if that does not help; it then returns that error,
// or nil once the End was handed over.
//
// answers gives the answers to Input events; nil refuses them. An error is
// returned, with no event, only when the cell did not run at all:
// [arenero.NotFound], [arenero.Conflict] for a dead kernel, [arenero.TooLarge].
func (m *Manager) Execute(ctx context.Context, e arenero.Execute, answers <-chan string, on func(Event) error) error {
	k, err := m.kernel("execute", e.Kernel)
	if err != nil {
		return err
	}
	return k.execute(ctx, e, answers, on)
}

// Complete says what could follow at cursor, a count of bytes into code.
func (m *Manager) Complete(ctx context.Context, name, code string, cursor int) (arenero.Completion, error) {
	k, err := m.kernel("complete", name)
	if err != nil {
		return arenero.Completion{}, err
	}
	return k.complete(ctx, code, cursor)
}

// Inspect says what is known of the thing at cursor, by MIME type; empty when
// nothing is.
func (m *Manager) Inspect(ctx context.Context, name, code string, cursor int) (map[string]string, error) {
	k, err := m.kernel("inspect", name)
	if err != nil {
		return nil, err
	}
	return k.inspect(ctx, code, cursor)
}

// Settle lets every live kernel give back what memory it can. The agent calls it
// before a snapshot, while no cell runs.
func (m *Manager) Settle(ctx context.Context) error {
	for _, k := range m.all() {
		if err := k.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Reseed makes every live kernel differ from other copies of the same snapshot.
// The agent calls it at wake, before user code; it leaves no trace that code
// could see: no count, no history, no name.
func (m *Manager) Reseed(ctx context.Context, s Seed) error {
	var wg sync.WaitGroup
	ks := m.all()
	errs := make([]error, len(ks))
	for i, k := range ks {
		wg.Go(func() { errs[i] = k.reseed(ctx, s) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Close ends every kernel and refuses new ones. It is idempotent.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	ks := m.kernels
	m.kernels = map[string]*kernel{}
	m.mu.Unlock()
	var wg sync.WaitGroup
	for _, k := range ks {
		wg.Go(k.stop)
	}
	wg.Wait()
	return nil
}

func (m *Manager) kernel(op, name string) (*kernel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kernels[name]
	if k == nil {
		return nil, arenero.Errorf(arenero.NotFound, op, "", "no kernel is called %.70q", name)
	}
	return k, nil
}

func (m *Manager) forget(k *kernel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernels[k.name] == k {
		delete(m.kernels, k.name)
	}
}

func (m *Manager) all() []*kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	ks := make([]*kernel, 0, len(m.kernels))
	for _, k := range m.kernels {
		ks = append(ks, k)
	}
	sort.Slice(ks, func(i, j int) bool { return ks[i].name < ks[j].name })
	return ks
}
