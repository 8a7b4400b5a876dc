package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// A Store holds images in a folder. Any number of processes may use the same
// folder at once; all methods may be called from any number of goroutines.
type Store struct {
	dir    string
	states string // often not in dir: images are shared by daemons, states are of one
}

// Details is all that the store knows of an image.
type Details struct {
	arenero.Image

	Recipe string   `json:"recipe,omitempty"` // digest of the recipe it was built from
	Names  []string `json:"-"`                // every name of the same file system
	Path   string   `json:"-"`                // of the EROFS file
}

// Open opens the store in dir, made if it is missing, and sweeps what killed
// builds have left. The states of sandboxes are in a folder of it.
func Open(dir string) (*Store, error) { return OpenWith(dir, filepath.Join(dir, "states")) }

// OpenWith is Open with the states of sandboxes in another folder: images can be
// shared by daemons, states are of one.
func OpenWith(dir, states string) (*Store, error) {
	const op = "open image store"
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fail(op, "", err)
	}
	s := &Store{dir: abs}
	if s.states, err = filepath.Abs(states); err != nil {
		return nil, fail(op, "", err)
	}
	for _, dir := range []string{s.path("blobs"), s.path("names"), s.path("snapshots"), s.path("locks"), s.path("tmp"), s.statesTmp()} {
		// Not for others: snapshots hold memory.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fail(op, "", err)
		}
	}
	for _, tmp := range []string{s.path("tmp"), s.statesTmp()} {
		if err := sweep(tmp); err != nil {
			return nil, fail(op, "", err)
		}
	}
	return s, nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Get finds an image by its name, with or without the tag "latest", or by its
// digest. NotFound when there is none.
// Snapshot and ColdWhy are left to the caller, see [Store.Lookup].
func (s *Store) Get(ctx context.Context, name string) (arenero.Image, error) {
	d, err := s.Inspect(ctx, name)
	return d.Image, err
}

// Inspect is Get with all that is known.
func (s *Store) Inspect(ctx context.Context, name string) (Details, error) {
	const op = "find image"
	if err := ctx.Err(); err != nil {
		return Details{}, fail(op, name, err)
	}
	byDigest := digestRE.MatchString(name)
	if !byDigest {
		if err := checkName(name); err != nil {
			return Details{}, err
		}
	}
	all, err := s.all()
	if err != nil {
		return Details{}, fail(op, name, err)
	}
	i := slices.IndexFunc(all, func(d Details) bool { return d.Name == name })
	if i < 0 {
		i = slices.IndexFunc(all, func(d Details) bool { return d.Name == name+":latest" || byDigest && d.Digest == name })
	}
	if i < 0 {
		return Details{}, s.notFound(op, name)
	}
	for _, d := range all {
		if d.Digest == all[i].Digest {
			all[i].Names = append(all[i].Names, d.Name)
		}
	}
	if _, err := os.Stat(all[i].Path); err != nil {
		return Details{}, arenero.Errorf(arenero.NotFound, op, name, "its file is gone: %w", err).
			WithHint("build or pull it again")
	}
	return all[i], nil
}

func (s *Store) notFound(op, name string) error {
	e := arenero.Errorf(arenero.NotFound, op, name, "no such image")
	if slices.Contains(Builtin(), name) {
		return e.WithHint("arenero image build %s", name)
	}
	if digestRE.MatchString(name) {
		return e
	}
	return e.WithHint("arenero image pull %s, or: arenero image ls", name)
}

// List returns every image, sorted by name.
func (s *Store) List(ctx context.Context) ([]arenero.Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("list images", "", err)
	}
	all, err := s.all()
	if err != nil {
		return nil, fail("list images", "", err)
	}
	images := make([]arenero.Image, len(all))
	for i, d := range all {
		images[i] = d.Image
	}
	return images, nil
}

// all reads every manifest, sorted by name. One that cannot be read is left out:
// it must not keep the others from being used.
func (s *Store) all() ([]Details, error) {
	entries, err := os.ReadDir(s.path("names"))
	if err != nil {
		return nil, err
	}
	var all []Details
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		data, err := os.ReadFile(s.path("names", e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		var d Details
		if json.Unmarshal(data, &d) != nil || fileName(d.Name)+".json" != e.Name() || blobName(d.Digest) == "" {
			continue
		}
		d.Path = s.path("blobs", blobName(d.Digest))
		d.RootFS = d.Path
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Details) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Remove forgets a name. The file system and its warm snapshots go with the last
// name, unless a running sandbox still uses them; then they go later. NotFound
// when there is no such name.
func (s *Store) Remove(ctx context.Context, name string) error {
	const op = "remove image"
	d, err := s.Inspect(ctx, name)
	if err != nil && arenero.CodeOf(err) != arenero.NotFound {
		return err
	}
	if err == nil && !digestRE.MatchString(name) {
		name = d.Name
	}
	if err := checkName(name); err != nil {
		return err
	}
	l, _, err := waitLock(ctx, s.path("locks", fileName(name)), nil)
	if err != nil {
		return fail(op, name, err)
	}
	defer l.unlock()
	err = os.Remove(s.path("names", fileName(name)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s.notFound(op, name)
	}
	if err != nil {
		return fail(op, name, err)
	}
	// The name is gone whatever the caller does now.
	return fail(op, name, s.collect(context.WithoutCancel(ctx)))
}

// storeLock is the lock under which names and blobs change. No image can be
// called this: a name has no "+" at its beginning.
const storeLock = "+store"

// publish moves a finished file to its place and gives it its name. Both appear
// whole or not at all; the file first, so that a name always stands for a file.
func (s *Store) publish(ctx context.Context, d Details, file string) (arenero.Image, error) {
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return arenero.Image{}, err
	}
	d.Path = s.path("blobs", blobName(d.Digest))
	d.RootFS = d.Path
	err = errors.Join(
		os.Chmod(file, 0o400),
		os.Rename(file, d.Path),
		syncDir(s.path("blobs")),
	)
	if err == nil {
		err = writeJSON(s.path("names", fileName(d.Name)+".json"), d)
	}
	l.unlock()
	if err != nil {
		return arenero.Image{}, err
	}
	return d.Image, s.collect(context.WithoutCancel(ctx))
}

// collect removes the blobs and snapshots that no name stands for and that no
// process has open.
func (s *Store) collect(ctx context.Context) error {
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return err
	}
	defer l.unlock()
	all, err := s.all()
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, d := range all {
		named[blobName(d.Digest)] = true
	}
	kept := map[string]bool{}
	ids, err := s.KeptIDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		m, err := readMeta(s.keptDir(id))
		if err != nil {
			return fmt.Errorf("state %s: %w", id, err) // it may need any of them
		}
		kept[blobName(m.Key.Image)] = true
	}
	blobs, err := os.ReadDir(s.path("blobs"))
	if err != nil {
		return err
	}
	for _, b := range blobs {
		path := s.path("blobs", b.Name())
		if !named[b.Name()] && !kept[b.Name()] && !isOpen(path) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	snaps, err := os.ReadDir(s.path("snapshots"))
	if err != nil {
		return err
	}
	for _, e := range snaps {
		if !named["sha256-"+e.Name()+".erofs"] {
			if err := s.removeSnapshots(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// isOpen reports whether some process has the file open: the kernel grants a
// write lease on a file only to its single opener.
func isOpen(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		// A file system without leases cannot say; then the file goes, which
		// takes nothing from those who have it open.
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

// writeJSON replaces a file by v, whole or not at all.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a folder last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
