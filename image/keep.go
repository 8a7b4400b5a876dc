package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// Kept is the memory and the files of one sandbox on disk, under an id that the
// caller chose. Unlike a warm snapshot it cannot be made again, so nothing
// removes it but [Store.Drop], and its image stays as long as it does.
type Kept struct {
	ID      string
	Dir     string        // to restore from
	Image   arenero.Image // as it was then; RootFS is set
	Key     Key           // what it needs to be restored
	Size    int64         // bytes
	Created time.Time
}

var keptID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func (s *Store) keptDir(id string) string { return filepath.Join(s.states, id) }

// statesTmp is a name that no state can have.
func (s *Store) statesTmp() string { return filepath.Join(s.states, ".tmp") }

// Keep writes a state: fill writes it into an empty folder, and it takes its
// place whole or not at all. [arenero.Conflict] for an id in use,
// [arenero.Exhausted] when the disk is full, and fill's own errors.
func (s *Store) Keep(ctx context.Context, id string, img arenero.Image, k Key, fill func(dir string) error) (Kept, error) {
	const op = "keep state"
	if !keptID.MatchString(id) || blobName(k.Image) == "" || k.Image != img.Digest {
		return Kept{}, arenero.Errorf(arenero.Invalid, op, "", "not the id of a state, or not of this image")
	}
	if _, err := os.Lstat(s.keptDir(id)); err == nil {
		return Kept{}, arenero.Errorf(arenero.Conflict, op, id, "the id is in use")
	}
	w, err := newWork(s.statesTmp(), "keep")
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	defer w.done()
	size, err := w.snapshot(ctx, k, fill)
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	raw, err := json.Marshal(img)
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	if err := os.WriteFile(filepath.Join(w.path, "new", keptImage), raw, 0o600); err != nil {
		return Kept{}, fail(op, id, err)
	}
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	defer l.unlock()
	if _, err := os.Stat(s.path("blobs", blobName(k.Image))); err != nil {
		return Kept{}, arenero.Errorf(arenero.NotFound, op, id, "its image is gone")
	}
	if err := os.Rename(filepath.Join(w.path, "new"), s.keptDir(id)); err != nil {
		return Kept{}, fail(op, id, err)
	}
	if err := syncDir(s.states); err != nil {
		return Kept{}, fail(op, id, err)
	}
	img.RootFS = s.path("blobs", blobName(k.Image))
	return Kept{ID: id, Dir: filepath.Join(s.keptDir(id), snapshotBox), Image: img, Key: k, Size: size, Created: time.Now().UTC()}, nil
}

// KeepAgain gives a state a second id. The files are shared until one goes.
func (s *Store) KeepAgain(ctx context.Context, id, of string) (Kept, error) {
	const op = "keep state"
	old, err := s.Kept(of)
	if err != nil {
		return Kept{}, err
	}
	w, err := newWork(s.statesTmp(), "keep")
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	defer w.done()
	fresh := filepath.Join(w.path, "new")
	if err := os.MkdirAll(filepath.Join(fresh, snapshotBox), 0o700); err != nil {
		return Kept{}, fail(op, id, err)
	}
	names := []string{snapshotNote, keptImage}
	entries, err := os.ReadDir(old.Dir)
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	for _, e := range entries {
		names = append(names, filepath.Join(snapshotBox, e.Name()))
	}
	for _, name := range names {
		if err := os.Link(filepath.Join(s.keptDir(of), name), filepath.Join(fresh, name)); err != nil {
			return Kept{}, fail(op, id, err)
		}
	}
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return Kept{}, fail(op, id, err)
	}
	defer l.unlock()
	if !keptID.MatchString(id) {
		return Kept{}, arenero.Errorf(arenero.Invalid, op, "", "not the id of a state")
	}
	if err := os.Rename(fresh, s.keptDir(id)); err != nil {
		return Kept{}, fail(op, id, err)
	}
	if err := syncDir(s.states); err != nil {
		return Kept{}, fail(op, id, err)
	}
	old.ID, old.Dir = id, filepath.Join(s.keptDir(id), snapshotBox)
	return old, nil
}

// keptImage is the note of a state's image, beside those of every snapshot.
const keptImage = "image.json"

// Kept finds a state. It looks at sizes only: call [Verify] before a restore.
// [arenero.NotFound] when there is none, [arenero.Internal] when it is damaged.
func (s *Store) Kept(id string) (Kept, error) {
	const op = "find state"
	if !keptID.MatchString(id) {
		return Kept{}, arenero.Errorf(arenero.NotFound, op, "", "no such state")
	}
	dir := s.keptDir(id)
	m, err := readMeta(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Kept{}, arenero.Errorf(arenero.NotFound, op, id, "no such state")
	}
	if err != nil {
		return Kept{}, arenero.Errorf(arenero.Internal, op, id, "its note is damaged: %w", err)
	}
	k := Kept{ID: id, Dir: filepath.Join(dir, snapshotBox), Key: m.Key, Created: m.Created}
	raw, err := os.ReadFile(filepath.Join(dir, keptImage))
	if err == nil {
		err = json.Unmarshal(raw, &k.Image)
	}
	if err != nil {
		return Kept{}, arenero.Errorf(arenero.Internal, op, id, "its note is damaged: %w", err)
	}
	for _, f := range m.Files {
		k.Size += f.Size
	}
	if err := Verify(k.Dir, false); err != nil {
		return Kept{}, err
	}
	k.Image.RootFS = s.path("blobs", blobName(m.Key.Image))
	if _, err := os.Stat(k.Image.RootFS); err != nil {
		return Kept{}, arenero.Errorf(arenero.Internal, op, id, "its image is gone")
	}
	return k, nil
}

// Fits says why a state can not be restored by this machine and program; "" when
// it can.
func (k Kept) Fits(now Key) string { return strings.Join(k.Key.differs(now), ", ") }

// Drop removes a state. One that is not there is no error.
func (s *Store) Drop(id string) error {
	const op = "drop state"
	if !keptID.MatchString(id) {
		return nil
	}
	w, err := newWork(s.statesTmp(), "drop")
	if err != nil {
		return fail(op, id, err)
	}
	defer w.done()
	err = os.Rename(s.keptDir(id), filepath.Join(w.path, "old")) // never seen half removed
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(op, id, err)
	}
	return nil
}

// KeptIDs names every state there is.
func (s *Store) KeptIDs() ([]string, error) {
	entries, err := os.ReadDir(s.states)
	if err != nil {
		return nil, fail("list states", "", err)
	}
	var ids []string
	for _, e := range entries {
		if keptID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
