package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/arenero/arenero"
)

// A Key is all that a warm snapshot depends on. When any part of it differs, the
// snapshot cannot be restored, or would restore something else.
type Key struct {
	Image    string `json:"image"`    // digest of the image
	Engine   string `json:"engine"`   // name and version: "gvisor 20260905"
	Platform string `json:"platform"` // "systrap"
	CPU      string `json:"cpu"`      // digest of the CPU's features
	Agent    string `json:"agent"`    // digest of the guest agent
	Profile  string `json:"profile"`  // whatever else the box was made with
}

// hex is the name of the key: a digest of its parts, each with its length.
func (k Key) hex() string {
	h := sha256.New()
	for _, part := range []string{k.Image, k.Engine, k.Platform, k.CPU, k.Agent, k.Profile} {
		fmt.Fprintf(h, "%d:%s;", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// snapshotMeta lies beside the files of a snapshot.
type snapshotMeta struct {
	Key     Key            `json:"key"`
	Created time.Time      `json:"created"`
	Files   []snapshotFile `json:"files"`
}

type snapshotFile struct {
	Name   string `json:"name"` // relative to the snapshot
	Size   int64  `json:"size"`
	BLAKE3 string `json:"blake3"` // every restore checks it, and it is several times as fast as SHA-256
}

// files and meta are the two things in the folder of a snapshot.
const (
	snapshotBox  = "box"
	snapshotNote = "meta.json"
)

func (s *Store) snapshotDir(k Key, elem ...string) string {
	image := strings.TrimPrefix(k.Image, "sha256:")
	return s.path(append([]string{"snapshots", image, k.hex()}, elem...)...)
}

// Lookup finds the warm snapshot of a key: the folder to restore from, or "" and
// why there is none. It looks at sizes only; [Verify] reads everything.
func (s *Store) Lookup(k Key) (dir, why string) {
	if blobName(k.Image) == "" {
		return "", "the image has no digest"
	}
	dir = s.snapshotDir(k, snapshotBox)
	err := Verify(dir, false)
	if err == nil {
		return dir, ""
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "the warm snapshot is damaged: " + err.Error()
	}
	return "", s.whyNone(k)
}

// whyNone compares the key with those of the snapshots there are.
func (s *Store) whyNone(k Key) string {
	var nearest []string
	for _, m := range s.snapshots(k.Image) {
		diff := m.Key.differs(k)
		if len(diff) > 0 && (nearest == nil || len(diff) < len(nearest)) {
			nearest = diff
		}
	}
	if nearest == nil {
		return "no warm snapshot of this image has been made yet"
	}
	return "the warm snapshot does not fit here: " + strings.Join(nearest, ", ")
}

// differs says in words what is not as it was when the snapshot of k was made.
func (k Key) differs(now Key) []string {
	var out []string
	for _, d := range []struct{ old, now, format string }{
		{k.Engine, now.Engine, "it was made by %s and this is %s"},
		{k.Platform, now.Platform, "it was made on platform %s and this is %s"},
	} {
		if d.old != d.now {
			out = append(out, fmt.Sprintf(d.format, d.old, d.now))
		}
	}
	if k.CPU != now.CPU {
		out = append(out, "it was made on another kind of processor")
	}
	if k.Agent != now.Agent {
		out = append(out, "it holds another build of the guest agent")
	}
	if k.Profile != now.Profile {
		out = append(out, "it was made with another profile")
	}
	return out
}

// snapshots reads the notes of every snapshot of an image, newest first.
func (s *Store) snapshots(image string) []snapshotMeta {
	notes, err := filepath.Glob(s.path("snapshots", strings.TrimPrefix(image, "sha256:"), "*", snapshotNote))
	if err != nil {
		return nil
	}
	var all []snapshotMeta
	for _, note := range notes {
		if m, err := readMeta(filepath.Dir(note)); err == nil && m.Key.hex() == filepath.Base(filepath.Dir(note)) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b snapshotMeta) int { return b.Created.Compare(a.Created) })
	return all
}

func readMeta(dir string) (snapshotMeta, error) {
	var m snapshotMeta
	data, err := os.ReadFile(filepath.Join(dir, snapshotNote))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(data, &m)
}

// Put makes the snapshot of a key: fill writes it into an empty folder, and it
// takes its place whole or not at all. When two make the same one, the second
// waits and gets the first's. It returns the folder to restore from.
//
// Errors: NotFound when the image is gone, Exhausted, Canceled, and fill's own.
func (s *Store) Put(ctx context.Context, k Key, fill func(dir string) error) (string, error) {
	const op = "store snapshot"
	if blobName(k.Image) == "" {
		return "", arenero.Errorf(arenero.Invalid, op, "", "%q is not the digest of an image", k.Image)
	}
	l, waited, err := waitLock(ctx, s.path("locks", "+snap-"+k.hex()), nil)
	if err != nil {
		return "", fail(op, "", err)
	}
	defer l.unlock()
	box := s.snapshotDir(k, snapshotBox)
	if waited && Verify(box, false) == nil {
		return box, nil
	}
	w, err := s.newWork("snapshot")
	if err != nil {
		return "", fail(op, "", err)
	}
	defer w.done()
	if _, err := w.snapshot(ctx, k, fill); err != nil {
		return "", fail(op, "", err)
	}
	return box, fail(op, "", s.place(ctx, k, w))
}

// snapshot writes a whole snapshot, note included, into the folder "new".
func (w *workdir) snapshot(ctx context.Context, k Key, fill func(dir string) error) (size int64, err error) {
	m := snapshotMeta{Key: k, Created: time.Now().UTC()}
	fresh := filepath.Join(w.path, "new", snapshotBox)
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		return 0, err
	}
	if err := fill(fresh); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if m.Files, err = sumFiles(fresh, true); err != nil {
		return 0, err
	}
	for _, f := range m.Files {
		size += f.Size
	}
	return size, writeJSON(filepath.Join(w.path, "new", snapshotNote), m)
}

// place moves a finished snapshot to where it belongs; one that was there goes.
func (s *Store) place(ctx context.Context, k Key, w *workdir) error {
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return err
	}
	defer l.unlock()
	if _, err := s.Get(ctx, k.Image); err != nil {
		return err
	}
	dir := s.snapshotDir(k)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Join(w.path, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(filepath.Join(w.path, "new"), dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// sumFiles lists what is in a folder and, if sink, sees it onto the disk.
func sumFiles(dir string, sink bool) ([]snapshotFile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var files []snapshotFile
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%q is not a regular file", d.Name())
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		sunk := make(chan error, 1)
		if sink {
			go func() { sunk <- f.Sync() }() // beside the reading; joined below
		} else {
			sunk <- nil
		}
		h := blake3.New()
		size, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
		if err = errors.Join(err, <-sunk); err != nil {
			return err
		}
		files = append(files, snapshotFile{name, size, hex.EncodeToString(h.Sum(nil))})
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("nothing was written")
	}
	slices.SortFunc(files, func(a, b snapshotFile) int { return cmp.Compare(a.Name, b.Name) })
	return files, err
}

// Verify checks a snapshot, given the folder that [Store.Lookup] returned: that
// every file is there with its size and, if full, with its digest. The cause of
// the error is fs.ErrNotExist when there is no snapshot.
func Verify(dir string, full bool) error {
	const op = "verify snapshot"
	m, err := readMeta(filepath.Dir(dir))
	if err != nil {
		return fail(op, "", err)
	}
	if full {
		now, err := sumFiles(dir, false)
		if err != nil {
			return fail(op, "", err)
		}
		if !slices.Equal(now, m.Files) {
			return arenero.Errorf(arenero.Internal, op, "", "the files are not those that were written")
		}
		return nil
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(f.Name) {
			return arenero.Errorf(arenero.Internal, op, "", "%q is not a file of it", f.Name)
		}
		info, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil {
			// Said without its chain: the snapshot exists, in part.
			return arenero.Errorf(arenero.Internal, op, "", "%s is missing", f.Name)
		}
		if !info.Mode().IsRegular() || info.Size() != f.Size {
			return arenero.Errorf(arenero.Internal, op, "", "%s is %d bytes, must be %d", f.Name, info.Size(), f.Size)
		}
	}
	return nil
}

// PruneSnapshots removes the snapshots of an image except those of the given
// keys: old engines and agents leave ones that never fit again.
func (s *Store) PruneSnapshots(ctx context.Context, image string, keep ...Key) error {
	const op = "prune snapshots"
	if blobName(image) == "" {
		return arenero.Errorf(arenero.Invalid, op, "", "%q is not the digest of an image", image)
	}
	l, _, err := waitLock(ctx, s.path("locks", storeLock), nil)
	if err != nil {
		return fail(op, "", err)
	}
	defer l.unlock()
	dir := s.path("snapshots", strings.TrimPrefix(image, "sha256:"))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fail(op, "", err)
	}
	for _, e := range entries {
		if slices.ContainsFunc(keep, func(k Key) bool { return k.hex() == e.Name() && k.Image == image }) {
			continue
		}
		if err := s.dropSnapshot(filepath.Join(dir, e.Name())); err != nil {
			return fail(op, "", err)
		}
	}
	return nil
}

// removeSnapshots removes every snapshot of an image; hex is of its digest.
func (s *Store) removeSnapshots(hex string) error {
	return s.dropSnapshot(s.path("snapshots", hex))
}

// dropSnapshot removes a folder so that it is never seen half removed.
func (s *Store) dropSnapshot(dir string) error {
	w, err := s.newWork("drop")
	if err != nil {
		return err
	}
	defer w.done()
	return os.Rename(dir, filepath.Join(w.path, "old"))
}
