// Package gvisor makes boxes with gVisor, which is linked into this program: a
// kernel written in Go (the Sentry) that runs as an unprivileged process and
// serves every system call of the guest itself. No other program is needed.
//
// A box is one Sentry process. Its root is an EROFS image that the Sentry reads
// through one descriptor, so that no file of the host is reachable and no gofer
// process is needed; only a box that is given folders of this machine has one, see
// gofer.go. The wire to the guest agent is a pair of named FIFOs given
// as the agent's standard input and output: the Sentry holds both ends open, so a
// box outlives the daemon and is taken up again by the next one.
//
// The engine drives the Sentry through its control socket, in this process; no
// runsc command is ever started. The caller must run [Dispatch] first.
package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/arenero/arenero"
)

// Name is the word users choose this engine by.
const Name = "gvisor"

// Config says where the engine keeps its boxes.
type Config struct {
	// Dir holds a directory per box. It must outlive the boxes.
	Dir string
	// Agent is the EROFS image with the guest agent, as image.Agent makes it.
	Agent string
	// Platform is "systrap", "kvm", or "" to choose: systrap unless KVM works.
	Platform string
	// CgroupParent is the group below which boxes get theirs; "" is "arenero".
	// Engines with different Dirs may share it.
	CgroupParent string
	// Log receives what the Sentry warns of; nil is nothing.
	Log *slog.Logger
}

// Engine implements [arenero.Engine].
type Engine struct {
	cfg    Config
	log    *slog.Logger
	parent string // the group of this engine's boxes
	at     map[string]hierarchy
	atErr  error

	platform func() string

	// stdio guards the moment in which os.Stdin, Stdout and Stderr are the box's.
	stdio sync.Mutex

	mu   sync.Mutex
	open map[string]*Instance // by ID; one Instance per box and process
}

// New allocates an engine. It changes nothing on the machine; [Engine.Probe]
// tells whether it can work here.
func New(cfg Config) *Engine {
	if cfg.CgroupParent == "" {
		cfg.CgroupParent = "arenero"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{cfg: cfg, log: cfg.Log, open: map[string]*Instance{}}
	// Each Dir has a group of its own, so that what is left in it has one owner.
	sum := sha256.Sum256([]byte(cfg.Dir))
	e.parent = filepath.Join(cfg.CgroupParent, hex.EncodeToString(sum[:6]))
	e.at, e.atErr = hierarchies("/proc/self/mounts")
	e.platform = sync.OnceValue(e.choosePlatform)
	takeLog(cfg.Log)
	return e
}

// Name implements [arenero.Engine].
func (e *Engine) Name() string { return Name }

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// record is what the engine writes down of a box, before it makes it and after.
type record struct {
	ID      string         `json:"id"`
	Limits  arenero.Limits `json:"limits"`
	Cgroup  string         `json:"cgroup"`
	Gofer   bool           `json:"gofer"`   // it has mounts
	PID     int            `json:"pid"`     // of the Sentry; 0 until it runs
	Started uint64         `json:"started"` // the Sentry's start time in ticks, so that a reused pid is not mistaken for it
	Socket  string         `json:"socket"`  // the Sentry's control socket
}

const recordFile = "box.json"

func (e *Engine) dir(id string) string { return filepath.Join(e.cfg.Dir, id) }

func (r record) save(dir string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, recordFile+".tmp")
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, recordFile))
}

func loadRecord(dir string) (record, error) {
	var r record
	raw, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(raw, &r)
}

// Create implements [arenero.Engine].
func (e *Engine) Create(ctx context.Context, b arenero.Box) (arenero.Instance, error) {
	p, err := e.prepare(ctx, b)
	if err != nil {
		return nil, err
	}
	return p.Start(ctx, b)
}

// Prepare implements [arenero.Preparer]: a Sentry that waits for its guest. It is
// in its groups, and has its memory limit, but uses almost nothing.
func (e *Engine) Prepare(ctx context.Context, b arenero.Box) (arenero.Prepared, error) {
	p, err := e.prepare(ctx, b)
	if err != nil {
		return nil, err // not a typed nil
	}
	return p, nil
}

// Prepared implements [arenero.Prepared].
type Prepared struct {
	i       *Instance
	plan    plan
	sentry  *sandbox.Sandbox
	started bool
}

// ID implements [arenero.Prepared].
func (p *Prepared) ID() string { return p.i.rec.ID }

// Start implements [arenero.Prepared].
func (p *Prepared) Start(ctx context.Context, b arenero.Box) (arenero.Instance, error) {
	const op = "create box"
	if b.ID != p.ID() || p.started {
		return nil, arenero.Errorf(arenero.Invalid, op, b.ID, "it is not the box that was prepared, or it was started before")
	}
	p.started = true
	if err := p.i.start(ctx, p.sentry, p.plan, b); err != nil {
		p.i.e.takeBack(ctx, p.i)
		return nil, asError(op, b.ID, err)
	}
	return p.i, nil
}

// Destroy implements [arenero.Prepared].
func (p *Prepared) Destroy(ctx context.Context) error { return p.i.Destroy(ctx) }

func (e *Engine) prepare(ctx context.Context, b arenero.Box) (*Prepared, error) {
	const op = "create box"
	if !validID.MatchString(b.ID) {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "the id is not of the form [a-z0-9-]")
	}
	if err := checkMounts(b); err != nil {
		return nil, err
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, arenero.Errorf(arenero.Canceled, op, b.ID, "%w", err)
	}
	if err := os.MkdirAll(e.cfg.Dir, 0o700); err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, b.ID, "%w", err)
	}
	if err := os.Mkdir(e.dir(b.ID), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, arenero.Errorf(arenero.Conflict, op, b.ID, "a box of this id exists")
		}
		return nil, arenero.Errorf(diskCode(err), op, b.ID, "%w", err)
	}
	i := e.instance(record{ID: b.ID, Limits: b.Limits, Cgroup: filepath.Join(e.parent, b.ID), Gofer: len(b.Mounts) > 0})
	p := &Prepared{i: i}
	err := i.rec.save(i.dir)
	if err == nil {
		p.sentry, p.plan, err = i.prepare(b)
	}
	if err != nil {
		e.takeBack(ctx, i)
		return nil, asError(op, b.ID, err)
	}
	e.mu.Lock()
	e.open[b.ID] = i
	e.mu.Unlock()
	return p, nil
}

// takeBack removes a box that could not be made.
func (e *Engine) takeBack(ctx context.Context, i *Instance) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := i.Destroy(undo); err != nil {
		e.log.Warn("a box that could not be made could not be removed either", "box", i.rec.ID, "err", err)
	}
}

// Open implements [arenero.Engine].
func (e *Engine) Open(_ context.Context, id string) (arenero.Instance, error) {
	const op = "open box"
	if !validID.MatchString(id) {
		return nil, arenero.Errorf(arenero.NotFound, op, "", "no such box")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if i, ok := e.open[id]; ok {
		return i, nil
	}
	if _, err := os.Stat(e.dir(id)); err != nil && !newGroup(e.parent, id, e.at).exists() {
		return nil, arenero.Errorf(arenero.NotFound, op, id, "no such box")
	}
	rec, err := loadRecord(e.dir(id))
	if err != nil {
		// Its maker died before it wrote a word: there is nothing to take up, but
		// the caller must be able to destroy what is there.
		rec = record{ID: id, Cgroup: filepath.Join(e.parent, id)}
	}
	i := e.instance(rec)
	i.watch(false)
	e.open[id] = i
	return i, nil
}

// List implements [arenero.Engine].
func (e *Engine) List(context.Context) ([]string, error) {
	seen := map[string]bool{}
	var ids []string
	add := func(dir string) error {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return arenero.Errorf(arenero.Internal, "list boxes", "", "%w", err)
		}
		for _, entry := range entries {
			if name := entry.Name(); entry.IsDir() && validID.MatchString(name) && !seen[name] {
				seen[name] = true
				ids = append(ids, name)
			}
		}
		return nil
	}
	if err := add(e.cfg.Dir); err != nil {
		return nil, err
	}
	// A group whose directory is gone can only be found here.
	for _, dir := range newGroup("", e.parent, e.at).dirs() {
		if err := add(dir); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, id)
}

func (e *Engine) check() error {
	if e.atErr != nil {
		return arenero.Errorf(arenero.Unavailable, "find cgroups", "", "%w", e.atErr)
	}
	if d := e.defects(); len(d) > 0 {
		return arenero.Errorf(arenero.Unavailable, "check engine", Name, "%s", d[0].What).WithHint("%s", d[0].Mend)
	}
	return nil
}

func diskCode(err error) arenero.Code {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return arenero.Exhausted
	}
	return arenero.Internal
}

func asError(op, id string, err error) error {
	if _, ok := errors.AsType[*arenero.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return arenero.Errorf(arenero.Canceled, op, id, "%w", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return arenero.Errorf(arenero.Timeout, op, id, "%w", err)
	}
	return arenero.Errorf(diskCode(err), op, id, "%w", fmt.Errorf("%w", err))
}
