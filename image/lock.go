package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A lock is an flock on a file: it ends with the process that holds it, however
// that ends. Two opens of one process exclude each other too.
type lock struct{ f *os.File }

// errHeld is of a lock that somebody else holds.
var errHeld = errors.New("the lock is held")

// tryLock takes the lock at path at once or returns errHeld.
func tryLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return &lock{f}, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	return nil, err
}

// waitLock takes the lock at path, waiting until ctx ends. waited says that
// somebody else held it. Polling keeps it cancelable, which flock is not.
func waitLock(ctx context.Context, path string, waiting func()) (l *lock, waited bool, err error) {
	for {
		if l, err = tryLock(path); !errors.Is(err, errHeld) {
			return l, waited, err
		}
		if !waited && waiting != nil {
			waiting()
		}
		waited = true
		select {
		case <-ctx.Done():
			return nil, waited, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *lock) unlock() { _ = l.f.Close() }

// A workdir is a folder under tmp/ that lives as long as its lock is held.
type workdir struct {
	path string
	lock *lock
}

// newWork makes a folder for work in progress. The caller calls done.
func (s *Store) newWork(kind string) (*workdir, error) { return newWork(s.path("tmp"), kind) }

func newWork(tmp, kind string) (*workdir, error) {
	for {
		dir, err := os.MkdirTemp(tmp, kind+"-")
		if err != nil {
			return nil, err
		}
		l, err := tryLock(dir + ".lock")
		// A sweep of another process may have come between the folder and its
		// lock; then there is another folder to be had.
		if errors.Is(err, errHeld) {
			continue
		}
		if err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		if _, err := os.Stat(dir); err == nil {
			return &workdir{dir, l}, nil
		}
		l.unlock()
		_ = os.Remove(dir + ".lock")
	}
}

// done removes the folder and what is in it.
func (w *workdir) done() {
	_ = removeAll(w.path)
	_ = os.Remove(w.path + ".lock")
	w.lock.unlock()
}

// removeAll is os.RemoveAll for a tree in which a process that was just killed
// may still make a last file.
func removeAll(dir string) error {
	var err error
	for range 5 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// sweep removes the work of processes that no longer live.
func sweep(tmp string) error {
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if filepath.Ext(name) == ".lock" {
			continue
		}
		path := filepath.Join(tmp, name)
		l, err := tryLock(path + ".lock")
		if errors.Is(err, errHeld) {
			continue // somebody works there
		}
		if err != nil {
			return err
		}
		// What cannot be removed now, the next one tries; it is in nobody's way.
		if removeAll(path) == nil {
			_ = os.Remove(path + ".lock")
		}
		l.unlock()
	}
	return nil
}
