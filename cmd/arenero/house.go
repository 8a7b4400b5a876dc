package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/guest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

// A house is everything between a door and the ground, wired together.
type house struct {
	images *image.Store
	store  *store.Store
	engine *gvisor.Engine
	host   *host.Host
	yard   *yard // of a run; nil for a daemon
}

// The layout of a data folder:
//
//	key          of the local daemon
//	arenero.db   what the daemon knows, and its lock
//	boxes/       of the daemon
//	runs/X/      one yard per `arenero run`, see below
//	images/      shared by all
//	volumes/     folders that outlive sandboxes
//	states/      memory and files of sandboxes, on disk
//	agent/       the guest agent as the engine mounts it, shared by all
func boxes(dir string) string { return filepath.Join(dir, "boxes") }

// openForServe wires the house of a daemon. The caller runs and closes the host.
func openForServe(data string, c host.Config, platform string) (*house, error) {
	h := &house{}
	var err error
	if h.store, err = store.Open(data); err != nil {
		return nil, err
	}
	c.VolumeDir = filepath.Join(data, "volumes")
	if err := h.wire(data, boxes(data), platform, c); err != nil {
		return nil, errors.Join(err, h.store.Close())
	}
	return h, nil
}

// openForRun wires a house that lives as long as one command. It keeps nothing,
// so that any number of them, and a daemon, share a data folder.
func openForRun(ctx context.Context, data string) (*house, error) {
	h := &house{}
	var err error
	if h.yard, err = openYard(data); err != nil {
		return nil, err
	}
	sweepYards(ctx, data, slog.New(slog.DiscardHandler))
	if h.store, err = store.Memory(); err == nil {
		if err = h.wire(data, h.yard.dir, "", host.Config{}); err == nil {
			return h, nil
		}
	}
	return nil, errors.Join(err, h.close(ctx))
}

func (h *house) wire(data, boxes, platform string, c host.Config) error {
	binary, err := guest.Binary()
	if err != nil {
		return err
	}
	agent, digest, err := image.Agent(filepath.Join(data, "agent"), binary)
	if err != nil {
		return err
	}
	if h.images, err = image.OpenWith(filepath.Join(data, "images"), filepath.Join(data, "states")); err != nil {
		return err
	}
	h.engine = gvisor.New(gvisor.Config{Dir: boxes, Agent: agent, Platform: platform, Log: c.Log})
	c.Engines = map[string]arenero.Engine{h.engine.Name(): h.engine}
	c.Images, c.Store = h.images, h.store
	c.AgentDigest = digest
	h.host, err = host.New(c)
	return err
}

// close ends every sandbox, unless the host was told to keep them, and lets go of
// everything. It does so also when ctx has ended.
func (h *house) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	if h.host != nil {
		errs = append(errs, h.host.Close(ctx))
	}
	if h.store != nil {
		errs = append(errs, h.store.Close())
	}
	if h.yard != nil && errors.Join(errs...) == nil {
		errs = append(errs, h.yard.remove())
	}
	return errors.Join(errs...)
}

// A yard is the folder in which one `arenero run` keeps its sandbox. It is locked
// while the command lives. If the command is killed by force its sandbox stays;
// the lock does not, and the next run sweeps the yard.
type yard struct {
	dir  string
	lock *os.File
}

func yards(data string) string { return filepath.Join(data, "runs") }

func openYard(data string) (*yard, error) {
	const op = "make run folder"
	if err := os.MkdirAll(yards(data), 0o700); err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err).
			WithHint("run as root, or choose a folder that you may write to with --data")
	}
	for {
		dir := filepath.Join(yards(data), strings.ToLower(rand.Text()[:12]))
		lock, err := lockYard(dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // one who sweeps was faster
		}
		if err != nil {
			return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			lock.Close()
			return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
		}
		return &yard{dir: dir, lock: lock}, nil
	}
}

// lockYard locks a yard. The lock lies beside it, is there before it and goes
// after it. EWOULDBLOCK when somebody lives there.
func lockYard(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	// Whoever held it before may have removed the file that we opened.
	ours, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(f.Name()); err == nil && !os.SameFile(ours, there) {
			err = unix.EWOULDBLOCK
		}
	}
	if err != nil {
		f.Close()
		return nil, unix.EWOULDBLOCK
	}
	return f, nil
}

func (y *yard) remove() error {
	if err := errors.Join(os.RemoveAll(y.dir), os.Remove(y.lock.Name()), y.lock.Close()); err != nil {
		return arenero.Errorf(arenero.Internal, "remove run folder", y.dir, "%w", err)
	}
	return nil
}

// sweepYards takes down what runs that were killed by force have left. It is not
// this run's business to fail over it: what cannot be removed now is tried again
// by the next.
func sweepYards(ctx context.Context, data string, log *slog.Logger) {
	locks, err := filepath.Glob(filepath.Join(yards(data), "*.lock"))
	if err != nil {
		return
	}
	for _, name := range locks {
		dir := strings.TrimSuffix(name, ".lock")
		lock, err := lockYard(dir)
		if err != nil {
			continue // somebody lives there
		}
		y := &yard{dir: dir, lock: lock}
		if err := y.sweep(ctx); err != nil {
			log.Warn("sweep an ended run", "dir", dir, "err", err)
			lock.Close()
		}
	}
}

func (y *yard) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	engine := gvisor.New(gvisor.Config{Dir: y.dir})
	ids, err := engine.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		inst, err := engine.Open(ctx, id)
		if err == nil {
			err = inst.Destroy(ctx)
		}
		if err != nil && arenero.CodeOf(err) != arenero.NotFound {
			return err
		}
	}
	return y.remove()
}
