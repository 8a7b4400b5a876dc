// Package agent is the program inside every sandbox: PID 1, the host's only
// correspondent. It starts processes and kernels, does what is asked of files,
// dials ports and gives the sandbox its identity.
//
// # Rights
//
// The agent runs under an account of its own with the few capabilities it needs to
// act as somebody else. User code runs as the sandbox's user with no capability at
// all. Whatever the agent does with a path it does with that user's rights, so a
// path cannot lead it astray.
//
// # The life of a sandbox, from inside
//
// [New] as PID 1 closes user namespaces, takes over the children of the dead and
// waits. The first Wake makes the disk and says who the sandbox is. A Wake with
// Warm set is for a snapshot: kernels may start, user code may not. The next Wake
// claims the sandbox: it gets a disk of its own size, its environment, fresh
// randomness, and the agent gives up the capabilities it will not need again.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent/jupyter"
	"github.com/arenero/arenero/guest/wire"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Version is of the agent; the host shows it.
const Version = "1"

// A Meter says how many bytes of memory user code holds.
type Meter func() (int64, error)

// Config says what the agent is to be. The zero value serves the current user
// natively, as tests do.
type Config struct {
	// Init makes it PID 1 of a sandbox: it mounts, changes users and reaps, and
	// puts restrictions on this process that cannot be taken back.
	Init bool
	// Env is the image's environment: "K=V".
	Env []string
	// User is who user code is before a Wake says otherwise; nil is this process's
	// own user. With Init nothing runs before a Wake.
	User *arenero.User
	// Workdir is where user code starts before a Wake says otherwise; "" is "/".
	Workdir string
	// Limits hold before a Wake says otherwise.
	Limits arenero.Limits
	// RunDir is for connection files and sockets of kernels; "" is
	// /run/arenero with Init, else a temporary folder removed by Close.
	RunDir string
	// SpecDirs are where kernelspecs are looked for; nil is where Jupyter looks.
	SpecDirs []string
	// Proc is where the proc file system is; "" is /proc.
	Proc string
	// Meter measures memory; nil reads the box's own /proc/meminfo with Init, and
	// adds up the resident memory of what the agent started otherwise.
	Meter Meter
	// SumMemory adds up with Init too: for boxes whose /proc/meminfo is the host's.
	SumMemory bool
	// Mounts are folders that the engine mounted something at, which stay to be
	// seen when the agent mounts what can be written.
	Mounts []string
	// Log is for the operator; nil discards.
	Log *slog.Logger
}

// An Agent serves one sandbox. Make it with [New], end it with [Agent.Close].
type Agent struct {
	cfg      Config
	log      *slog.Logger
	uid, gid uint32
	groups   []uint32
	switches bool // it can act as other users
	born     time.Time
	tempDir  string // RunDir of our own making

	capsMu sync.RWMutex // held for writing while caps change
	caps   caps

	idMu   sync.RWMutex
	id     identity
	wakeMu sync.Mutex // one Wake at a time

	procMu   sync.Mutex
	procs    map[int]*process
	late     []*process // ended, newest first
	marks    map[uint32]bool
	lastMark uint32
	forked   chan struct{}
	starts   atomic.Int64

	guard   *guard
	kernels *jupyter.Manager
	stop    context.CancelFunc
	wg      sync.WaitGroup
	server  http.Handler
}

// New makes an agent and starts its guard. With Init set it also confines this
// process for good. Errors are *arenero.Error.
func New(cfg Config) (*Agent, error) {
	const op = "start agent"
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{
		cfg: cfg, log: cfg.Log, born: time.Now(),
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()),
		procs: map[int]*process{}, marks: map[uint32]bool{}, forked: make(chan struct{}, 1),
	}
	gs, _ := os.Getgroups()
	for _, g := range gs {
		a.groups = append(a.groups, uint32(g))
	}
	var err error
	if cfg.Init {
		err = initialize()
	}
	if err == nil {
		a.caps, err = getCaps()
	}
	if err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	const change = 1<<6 | 1<<7 // CAP_SETGID, CAP_SETUID
	a.switches = a.caps.effective&change == change
	if cfg.Init && !a.switches {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "the engine has not granted the capabilities to change users")
	}
	a.firstIdentity()
	if err := a.makeRunDir(); err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.guard = newGuard(a)
	a.kernels = a.newKernels()
	a.server = a.handler()
	a.wg.Go(func() { a.guard.run(ctx) })
	if cfg.Init {
		go a.reap() // ends with the sandbox
	}
	return a, nil
}

func (a *Agent) makeRunDir() error {
	if a.cfg.RunDir != "" || a.cfg.Init {
		if a.cfg.RunDir == "" {
			a.cfg.RunDir = "/run/arenero"
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "arenero-")
	if err != nil {
		return err
	}
	a.cfg.RunDir, a.tempDir = dir, dir
	return a.ownRunDir()
}

// ownRunDir gives the folder of the kernels' sockets to their user.
func (a *Agent) ownRunDir() error {
	u := a.identity().user
	if err := os.MkdirAll(a.cfg.RunDir, 0o700); err != nil {
		return err
	}
	if !a.switches {
		return nil
	}
	return os.Lchown(a.cfg.RunDir, int(u.UID), int(u.GID))
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(wire.NewGuestHandler(&service{a}, wire.HandlerOptions()...))
	return mux
}

// A listener gives one connection after another, as [wire.Listener] and
// net.Listener do.
type listener interface{ Accept() (net.Conn, error) }

// Serve serves the connections of l, each until it ends, and returns when l or ctx
// does. What runs inside goes on. It closes l if ctx ends.
func (a *Agent) Serve(ctx context.Context, l listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c, ok := l.(io.Closer); ok {
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	}
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			wg.Go(func() { a.ServeConn(ctx, c) })
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF):
			return nil
		default:
			return arenero.Errorf(arenero.Unavailable, "serve guest", "", "%w", err)
		}
	}
}

// ServeConn serves one connection until it ends or ctx does, and closes it.
func (a *Agent) ServeConn(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	//nolint:staticcheck // net/http serves listeners; the wire is one connection, and this serves one
	h2 := &http2.Server{
		MaxReadFrameSize:             wire.FrameSize,
		MaxUploadBufferPerStream:     wire.StreamWindow,
		MaxUploadBufferPerConnection: wire.ConnWindow,
		MaxConcurrentStreams:         512,
	}
	//nolint:staticcheck // see above
	h2.ServeConn(c, &http2.ServeConnOpts{
		Context: ctx,
		//nolint:gosec // the host is slow when it likes
		BaseConfig: &http.Server{ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)},
		Handler:    withControl(a.server),
	})
}

// Close ends everything the agent started, and the agent. It is idempotent.
func (a *Agent) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	a.stop()
	err := a.kernels.Close()
	a.endProcesses(ctx)
	a.wg.Wait()
	if a.tempDir != "" {
		err = errors.Join(err, os.RemoveAll(a.tempDir))
	}
	return err
}
