package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

const (
	maxWatched = 8192 // folders of one watch
	maxQueued  = 4096 // events that a slow reader may have to come
)

// A watch reports changes below a folder. Its queue is bounded: what a slow reader
// misses is counted.
type watch struct {
	a         *Agent
	user      account
	in        *fsnotify.Watcher
	recursive bool
	folders   int
}

func (a *Agent) newWatch(user string, path []byte, recursive bool) (*watch, error) {
	const op = "watch folder"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return nil, err
	}
	in, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fileError(op, name, err)
	}
	w := &watch{a: a, user: u, in: in, recursive: recursive}
	err = a.as(u, func() error {
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return arenero.Errorf(arenero.Invalid, op, "", "%.400q is not a folder", name)
		}
		return w.add(filepath.Clean(name), nil)
	})
	if err != nil {
		_ = in.Close()
		return nil, fileError(op, name, err)
	}
	return w, nil
}

// add watches a folder and, if asked, those below. found gets what is in folders
// below, which may have come before they were watched. The caller is the user.
func (w *watch) add(dir string, found func(string)) error {
	if w.folders >= maxWatched {
		return arenero.Errorf(arenero.TooLarge, "watch folder", "", "more than %d folders", maxWatched)
	}
	if err := w.in.Add(dir); err != nil {
		return err
	}
	w.folders++
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if found != nil {
			found(name)
		}
		if !e.IsDir() {
			continue
		}
		err := w.add(name, found)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

func (w *watch) close() { _ = w.in.Close() }

// queue is between the one who collects and the one who sends.
type queue struct {
	mu      sync.Mutex
	events  []*wire.WatchResponse
	dropped int32
	more    chan struct{}
}

func (q *queue) put(path, op string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= maxQueued {
		q.dropped++
		return
	}
	q.events = append(q.events, &wire.WatchResponse{Path: []byte(path), Op: op, Dropped: q.dropped})
	q.dropped = 0
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *queue) lost(n int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped += n
}

func (q *queue) take() []*wire.WatchResponse {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events
}

// run sends events until ctx ends or send fails.
func (w *watch) run(ctx context.Context, send func(*wire.WatchResponse) error) error {
	q := &queue{more: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() { // joined below
		defer close(ended)
		w.collect(q)
	}()
	defer func() { w.close(); <-ended }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return arenero.Errorf(arenero.Unavailable, "watch folder", "", "the watch ended")
		case <-q.more:
		}
		for _, e := range q.take() {
			if err := send(e); err != nil {
				return err
			}
		}
	}
}

func (w *watch) collect(q *queue) {
	for {
		select {
		case e, ok := <-w.in.Events:
			if !ok {
				return
			}
			w.event(e, q)
		case err, ok := <-w.in.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				q.lost(1) // at least
			}
		}
	}
}

func (w *watch) event(e fsnotify.Event, q *queue) {
	var op string
	switch {
	case e.Has(fsnotify.Create):
		op = "create"
	case e.Has(fsnotify.Write):
		op = "write"
	case e.Has(fsnotify.Remove):
		op = "remove"
	case e.Has(fsnotify.Rename):
		op = "rename"
	case e.Has(fsnotify.Chmod):
		op = "chmod"
	default:
		return
	}
	q.put(e.Name, op)
	if op != "create" || !w.recursive {
		return
	}
	_ = w.a.as(w.user, func() error { // a folder that is gone again needs no watch
		if st, err := os.Lstat(e.Name); err != nil || !st.IsDir() {
			return err
		}
		return w.add(e.Name, func(name string) { q.put(name, "create") })
	})
}
