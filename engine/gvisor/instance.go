package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/bundle"
)

// Instance implements [arenero.Instance] and all the optional interfaces.
type Instance struct {
	e     *Engine
	dir   string
	group *group

	mu        sync.Mutex
	rec       record
	wire      *wire // the open end, if any
	destroyed bool

	ended    chan struct{} // closed when exit is set
	exit     arenero.Exit
	watcher  sync.Once
	agentLog *ring

	goferEnded chan struct{} // closed when the gofer that this process started has ended; nil without one
}

func (e *Engine) instance(r record) *Instance {
	parent, id := filepath.Split(r.Cgroup)
	g := newGroup(parent, id, e.at)
	if r.Gofer {
		g.extra = goferMemory
	}
	return &Instance{
		e: e, dir: e.dir(r.ID), rec: r, ended: make(chan struct{}), group: g, agentLog: newRing(16 << 10),
	}
}

// ID implements [arenero.Instance].
func (i *Instance) ID() string { return i.rec.ID }

// start boots or restores in a Sentry that was prepared.
func (i *Instance) start(ctx context.Context, s *sandbox.Sandbox, p plan, b arenero.Box) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.spec.Hostname = b.Hostname
	if b.Limits != i.rec.Limits {
		if err := i.group.set(b.Limits); err != nil {
			return arenero.Errorf(arenero.Unavailable, "limit box", b.ID, "%w", err).WithHint("run `arenero doctor`")
		}
		i.mu.Lock()
		i.rec.Limits = b.Limits
		err = i.rec.save(i.dir)
		i.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if b.Restore != "" {
		err = restore(s, p, b)
	} else if err = s.StartRoot(p.conf, p.spec); err != nil {
		err = fmt.Errorf("boot: %w", err)
	}
	if err != nil && i.group.oomKills() > 0 {
		return arenero.Errorf(arenero.Exhausted, "start box", b.ID, "it needs more memory than its limit: %w", err)
	}
	if err != nil {
		return err
	}
	if err := i.group.throttle(b.Limits); err != nil {
		return arenero.Errorf(arenero.Unavailable, "limit box", b.ID, "%w", err).WithHint("run `arenero doctor`")
	}
	return nil
}

// plan is what gVisor must be told at each step of a start.
type plan struct {
	conf *config.Config
	spec *specs.Spec
}

// prepare does all of a start but the guest: a Sentry that runs nothing yet.
func (i *Instance) prepare(b arenero.Box) (*sandbox.Sandbox, plan, error) {
	var p plan
	if err := i.group.create(); err != nil {
		return nil, p, err
	}
	if err := i.group.set(b.Limits); err != nil {
		return nil, p, arenero.Errorf(arenero.Unavailable, "limit box", b.ID, "%w", err).
			WithHint("run `arenero doctor`")
	}
	var err error
	if p.conf, err = i.e.config(i.dir, b.NetNS != ""); err != nil {
		return nil, p, err
	}
	if p.spec, err = i.spec(b); err != nil {
		return nil, p, err
	}
	if err := bundle.Write(p.spec, i.dir); err != nil {
		return nil, p, err
	}
	s, err := i.sentry(p, b)
	if err != nil && strings.Contains(err.Error(), io.EOF.Error()) && len(b.Mounts) == 0 {
		// It ended before it said that it was there. Nothing of a guest has run, so
		// another may be tried; two in a row are no accident.
		i.e.log.Warn("a sentry ended before it was up; starting another", "box", b.ID, "err", err)
		s, err = i.sentry(p, b)
	}
	return s, p, err
}

func (i *Instance) spec(b arenero.Box) (*specs.Spec, error) {
	rootDir := filepath.Join(i.dir, "rootfs")
	if err := os.Mkdir(rootDir, 0o700); err != nil {
		return nil, err
	}
	return bundle.Spec(b, append(bundle.Default(), func(s *specs.Spec, b arenero.Box) error {
		s.Root.Path = rootDir
		// The Sentry gets the images as open files. What the specification calls
		// them must be the same wherever they lie, since a snapshot is only
		// restored under the specification it was made with.
		s.Annotations["dev.gvisor.spec.rootfs.source"] = "/image"
		s.Annotations["dev.gvisor.spec.rootfs.type"] = "erofs"
		s.Mounts = append(s.Mounts, specs.Mount{
			Type: "erofs", Source: "/agent", Destination: bundle.AgentDir, Options: []string{"ro", "nosuid"},
		})
		return nil
	}, mountRule)...)
}

// sentry starts the box's kernel and moves it into its groups. Nothing of the
// guest runs yet.
func (i *Instance) sentry(p plan, b arenero.Box) (*sandbox.Sandbox, error) {
	hints, err := boot.NewPodMountHints(p.spec)
	if err != nil {
		return nil, err
	}
	image, err := os.Open(b.RootFS)
	if err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, "open image", b.RootFS, "%w", err)
	}
	agent, err := os.Open(i.e.cfg.Agent)
	if err != nil {
		image.Close()
		return nil, arenero.Errorf(arenero.Unavailable, "open guest agent", i.e.cfg.Agent, "%w", err)
	}
	guest, err := makeWire(i.dir)
	if err != nil {
		image.Close()
		agent.Close()
		return nil, err
	}
	defer guest.close()

	files := []*os.File{image, agent} // closed by gVisor, in the order of the mounts
	if len(b.Mounts) > 0 {
		sockets, err := i.gofer(p, b, guest)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, sockets...)
	}
	args := &sandbox.Args{
		ID: b.ID, Spec: p.spec, BundleDir: i.dir, MountHints: hints,
		IOFiles: files, GoferMountConfs: mountConfs(b), Cgroup: visible{b.Limits},
	}
	s, err := i.e.withStdio(guest, func() (*sandbox.Sandbox, error) { return sandbox.New(p.conf, args) })
	if err != nil {
		return nil, fmt.Errorf("start sentry: %w%s", err, lastWords(i.dir))
	}
	pid := s.Getpid()
	i.mu.Lock()
	i.rec.PID, i.rec.Socket = pid, s.ControlSocketPath
	i.rec.Started, _ = startTime(pid)
	rec := i.rec
	i.mu.Unlock()
	i.watch(true)
	if err := rec.save(i.dir); err != nil {
		return nil, err
	}
	// The Sentry may have helpers already; what they start later is born inside.
	for _, member := range append([]int{pid}, descendants(pid)...) {
		if err := i.group.add(member); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, err
		}
	}
	return s, nil
}

// withStdio lends the box's ends of the wire as standard streams while f runs:
// gVisor gives a new Sentry the streams of the process that makes it. Nothing
// else in this program may use the three variables once it serves; main takes
// its own streams first.
func (e *Engine) withStdio(g *guestEnd, f func() (*sandbox.Sandbox, error)) (*sandbox.Sandbox, error) {
	e.stdio.Lock()
	defer e.stdio.Unlock()
	in, out, errs := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = in, out, errs }()
	os.Stdin, os.Stdout, os.Stderr = g.in, g.out, g.log
	return f()
}

func restore(s *sandbox.Sandbox, p plan, b arenero.Box) error {
	// Direct reads spare a copy through the page cache; not every file system has them.
	err := s.Restore(p.conf, p.spec, b.ID, b.Restore, directIO(b.Restore), true, nil)
	if err != nil && len(b.Mounts) > 0 && strings.Contains(err.Error(), "CompleteRestore") {
		return arenero.Errorf(arenero.Invalid, "restore snapshot", b.Restore, "a file that it had in use in a mounted folder is not as it was: %w", err).
			WithHint("put the file back")
	}
	if err != nil {
		return arenero.Errorf(arenero.Invalid, "restore snapshot", b.Restore, "%w", err).
			WithHint("make the snapshot again with this version of arenero on this machine")
	}
	return nil
}

// directIO reports whether the pages of a snapshot can be read past the page cache.
func directIO(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "pages.img"), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// Dial implements [arenero.Instance].
func (i *Instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, arenero.Errorf(arenero.Canceled, "dial guest", i.ID(), "%w", err)
	}
	select {
	case <-i.ended:
		return nil, arenero.Errorf(arenero.Conflict, "dial guest", i.ID(), "the box has ended: %s", i.exit.Reason)
	default:
	}
	w, err := openWire(i.dir)
	if err != nil {
		return nil, arenero.Errorf(arenero.Conflict, "dial guest", i.ID(), "%w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		w.Close()
		return nil, arenero.Errorf(arenero.Conflict, "dial guest", i.ID(), "the box is being destroyed")
	}
	if i.wire != nil {
		i.wire.Close()
	}
	i.wire = w
	return w, nil
}

// Usage implements [arenero.Instance].
func (i *Instance) Usage(context.Context) (arenero.Usage, error) { return i.group.usage(), nil }

// Update implements [arenero.Updater]. The disk counts as memory here; how large
// it is, the guest agent was told when the box was claimed.
func (i *Instance) Update(_ context.Context, l arenero.Limits) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := errors.Join(i.group.set(l), i.group.throttle(l)); err != nil {
		return arenero.Errorf(arenero.Conflict, "update limits", i.rec.ID, "%w", err).
			WithHint("the sandbox may already use more than the new limit")
	}
	i.rec.Limits = l
	return i.rec.save(i.dir)
}

// handle is the Sentry's control socket, as gVisor wants to be asked.
func (i *Instance) handle(op string) (*sandbox.Sandbox, error) {
	select {
	case <-i.ended:
		return nil, arenero.Errorf(arenero.Conflict, op, i.ID(), "the box has ended: %s", i.exit.Reason)
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	s := &sandbox.Sandbox{ID: i.rec.ID, ControlSocketPath: i.rec.Socket}
	s.Pid.Store(i.rec.PID)
	return s, nil
}

// Pause implements [arenero.Pauser].
func (i *Instance) Pause(context.Context) error {
	s, err := i.handle("pause box")
	if err != nil {
		return err
	}
	if err := s.Pause(i.ID()); err != nil {
		return arenero.Errorf(arenero.Internal, "pause box", i.ID(), "%w", err)
	}
	return nil
}

// Resume implements [arenero.Pauser].
func (i *Instance) Resume(context.Context) error {
	s, err := i.handle("resume box")
	if err != nil {
		return err
	}
	if err := s.Resume(i.ID()); err != nil {
		return arenero.Errorf(arenero.Internal, "resume box", i.ID(), "%w", err)
	}
	return nil
}

// Snapshot implements [arenero.Snapshotter].
func (i *Instance) Snapshot(ctx context.Context, dir string, keepRunning bool) error {
	const op = "snapshot box"
	s, err := i.handle(op)
	if err != nil {
		return err
	}
	conf, err := i.e.config(i.dir, false)
	if err != nil {
		return arenero.Errorf(arenero.Internal, op, i.ID(), "%w", err)
	}
	if !keepRunning {
		// Pauses are counted: it stands still from here until it is killed, or, if
		// it can not be written, until this one is taken back. (Told not to go on, a
		// Sentry ends itself even when the writing has failed.)
		if err := s.Pause(i.ID()); err != nil {
			return arenero.Errorf(arenero.Internal, op, i.ID(), "pause: %w", err)
		}
	}
	err = s.Checkpoint(conf, i.ID(), dir, sandbox.CheckpointOpts{
		Compression: statefile.CompressionLevelNone, Resume: true, ExcludeCommittedZeroPages: true,
	})
	if err != nil {
		err = checkpointError(err)
		if !keepRunning {
			err = errors.Join(err, s.Resume(i.ID()))
		}
		return arenero.Errorf(diskCode(err), op, i.ID(), "%w", err)
	}
	if keepRunning {
		return nil
	}
	i.mu.Lock()
	rec := i.rec
	i.mu.Unlock()
	for _, pid := range i.sentries(rec) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	select {
	case <-i.ended:
		return nil
	case <-ctx.Done():
		return arenero.Errorf(arenero.Timeout, op, i.ID(), "the box did not end: %w", ctx.Err())
	}
}

// checkpointError brings back what an error was before it crossed the control
// socket as text, and leaves out the stack of the Sentry that comes with it.
func checkpointError(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	for _, known := range []error{unix.ENOSPC, unix.EDQUOT} {
		if strings.Contains(err.Error(), known.Error()) {
			return fmt.Errorf("%w (%.300s)", known, text)
		}
	}
	return fmt.Errorf("%.600s", text)
}

// Wait implements [arenero.Instance].
func (i *Instance) Wait(ctx context.Context) (arenero.Exit, error) {
	select {
	case <-i.ended:
		return i.exit, nil
	case <-ctx.Done():
		return arenero.Exit{}, arenero.Errorf(arenero.Canceled, "wait for box", i.ID(), "%w", ctx.Err())
	}
}

// Destroy implements [arenero.Instance].
func (i *Instance) Destroy(ctx context.Context) error {
	const op = "destroy box"
	i.mu.Lock()
	i.destroyed = true
	if i.wire != nil {
		i.wire.Close()
		i.wire = nil
	}
	rec := i.rec
	i.mu.Unlock()

	for _, pid := range i.sentries(rec) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	i.watch(false) // a box that never started ends here
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	if err := i.group.destroy(deadline); err != nil {
		return arenero.Errorf(arenero.Internal, op, rec.ID, "%w", err)
	}
	select {
	case <-i.ended:
	case <-ctx.Done():
		return arenero.Errorf(arenero.Timeout, op, rec.ID, "its process does not end: %w", ctx.Err())
	}
	if i.goferEnded != nil {
		<-i.goferEnded // it was in the group, or was killed before it was
	}
	if rec.Socket != "" {
		_ = os.Remove(rec.Socket)
	}
	if err := os.RemoveAll(i.dir); err != nil {
		return arenero.Errorf(arenero.Internal, op, rec.ID, "%w", err)
	}
	i.e.forget(rec.ID)
	return nil
}

// sentries finds the processes of the box: the recorded one, if the pid is still
// its own, or, when the daemon died between starting it and writing that down,
// the one that carries the box's name.
func (i *Instance) sentries(r record) []int {
	if r.PID != 0 {
		if started, err := startTime(r.PID); err == nil && started == r.Started {
			return []int{r.PID}
		}
		return nil
	}
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !strings.HasPrefix(string(raw), "runsc-sandbox\x00") {
			continue
		}
		if strings.HasSuffix(string(raw), "\x00"+r.ID+"\x00") && strings.Contains(string(raw), "--bundle="+i.dir+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}
