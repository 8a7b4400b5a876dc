package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// Limits bound what an OCI image may unpack to. A zero field is the default.
type Limits struct {
	Bytes   int64 // of all layers together, expanded, holes included: 32 GiB
	Entries int   // of all layers together: 2 million
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = 32 << 30
	}
	if l.Entries <= 0 {
		l.Entries = 2_000_000
	}
	return l
}

// Bounds that no image needs to exceed.
const (
	maxPath  = 4096
	maxDepth = 256       // folders in each other; every path is walked from the top
	maxNames = 512 << 20 // bytes of all names together
	maxID    = 1<<31 - 2
)

// An extractor unpacks the layers of an image, one above the other, into a
// folder. All of it is hostile: no path leaves the folder, no link is ever
// followed, and what has no place in an image (devices, pipes, attributes,
// set-user-id bits) never comes into being.
type extractor struct {
	root    *os.Root
	left    Limits
	names   int
	plain   bool            // no layers: whiteouts are files like any other
	folders map[string]bool // known to be real folders
	mine    map[string]bool // made by this layer, their parents included
}

func newExtractor(root *os.Root, l Limits) *extractor {
	return &extractor{root: root, left: l.withDefaults(), names: maxNames, folders: map[string]bool{}}
}

const opExtract = "unpack layer"

func hostile(format string, args ...any) error {
	return arenero.Errorf(arenero.Invalid, opExtract, "", format, args...)
}

// layer unpacks one tar stream.
func (x *extractor) layer(ctx context.Context, r io.Reader) error {
	x.mine = map[string]bool{}
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return x.readError(err)
		}
		if err := x.count(h); err != nil {
			return err
		}
		name, err := cleanEntry(h.Name)
		if err != nil {
			return err
		}
		if name == "." {
			continue
		}
		if err := x.entry(h, name, tr); err != nil {
			return err
		}
	}
}

// readError tells a broken archive from a failure to read it.
func (x *extractor) readError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return hostile("broken archive: %w", err)
	}
	return err
}

func (x *extractor) count(h *tar.Header) error {
	x.left.Entries--
	x.left.Bytes -= 512
	x.names -= len(h.Name) + len(h.Linkname)
	if h.Size > 0 {
		x.left.Bytes -= min(h.Size, x.left.Bytes+1)
	}
	if x.left.Entries < 0 || x.left.Bytes < 0 || x.names < 0 {
		return arenero.Errorf(arenero.TooLarge, opExtract, "", "the image is too large when unpacked").
			WithHint("raise the limits of the import if you trust it")
	}
	return nil
}

// cleanEntry turns the name of an entry into a path below the root. A leading
// slash means the root, as everywhere; ".." means an attack.
func cleanEntry(name string) (string, error) {
	if len(name) > maxPath {
		return "", hostile("a name of %d bytes", len(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || len(part) > 255 {
			return "", hostile("entry %.80q", name)
		}
	}
	if strings.ContainsRune(name, 0) || strings.Count(name, "/") > maxDepth {
		return "", hostile("entry %.80q", name)
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

func (x *extractor) entry(h *tar.Header, name string, r io.Reader) error {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if !x.plain && strings.HasPrefix(base, ".wh.") {
		return x.whiteout(dir, strings.TrimPrefix(base, ".wh."))
	}
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return hostile("entry %.80q belongs to %d:%d", name, h.Uid, h.Gid)
	}
	switch h.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default:
		return nil // devices, pipes, headers of no entry
	}
	if err := x.folder(dir); err != nil {
		return err
	}
	x.claim(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return x.makeDir(h, name)
	case tar.TypeSymlink:
		return x.symlink(h, name)
	case tar.TypeLink:
		return x.hardLink(h, name)
	}
	return x.file(h, name, r)
}

// claim notes that this layer has an entry, and therefore its folders.
func (x *extractor) claim(name string) {
	for name != "." && !x.mine[name] {
		x.mine[name] = true
		name = path.Dir(name)
	}
}

// folder makes sure that name is a real folder, and all above it. What is in the
// way, a link too, is replaced: a layer that has an entry below a path says that
// the path is a folder.
func (x *extractor) folder(name string) error {
	if name == "." || x.folders[name] {
		return nil
	}
	if err := x.folder(path.Dir(name)); err != nil {
		return err
	}
	info, err := x.root.Lstat(name)
	switch {
	case err == nil && info.IsDir():
	case err == nil:
		if err := x.root.Remove(name); err != nil {
			return err
		}
		fallthrough
	default:
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := x.root.Mkdir(name, 0o755); err != nil {
			return err
		}
	}
	x.folders[name] = true
	return nil
}

// isFolder reports whether name is a real folder, and all above it.
func (x *extractor) isFolder(name string) bool {
	for ; name != "." && !x.folders[name]; name = path.Dir(name) {
		if info, err := x.root.Lstat(name); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// clear removes what is at name, whatever it is.
func (x *extractor) clear(name string) error {
	info, err := x.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return x.root.Remove(name)
	}
	maps.DeleteFunc(x.folders, func(k string, _ bool) bool { return k == name || strings.HasPrefix(k, name+"/") })
	return x.root.RemoveAll(name)
}

func (x *extractor) makeDir(h *tar.Header, name string) error {
	if err := x.folder(name); err != nil {
		return err
	}
	if err := x.root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return x.root.Chmod(name, mode)
}

func (x *extractor) symlink(h *tar.Header, name string) error {
	if h.Linkname == "" || len(h.Linkname) > maxLink || strings.ContainsRune(h.Linkname, 0) {
		return hostile("entry %.80q links to %.80q", name, h.Linkname)
	}
	if err := x.clear(name); err != nil {
		return err
	}
	if err := x.root.Symlink(h.Linkname, name); err != nil {
		return err
	}
	return x.root.Lchown(name, h.Uid, h.Gid)
}

func (x *extractor) hardLink(h *tar.Header, name string) error {
	target, err := cleanEntry(h.Linkname)
	if err != nil {
		return err
	}
	if target == name {
		return nil
	}
	// The way to the target must be made of real folders as well.
	if !x.isFolder(path.Dir(target)) {
		return hostile("entry %.80q links to %.80q, which is not there", name, target)
	}
	info, err := x.root.Lstat(target)
	if err != nil || info.IsDir() || strings.HasPrefix(target, name+"/") {
		return hostile("entry %.80q links to %.80q, which is not a file", name, target)
	}
	if err := x.clear(name); err != nil {
		return err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		// A second name of a link is as good as another link.
		to, err := x.root.Readlink(target)
		if err != nil {
			return err
		}
		return x.root.Symlink(to, name)
	}
	return x.root.Link(target, name)
}

func (x *extractor) file(h *tar.Header, name string, r io.Reader) error {
	if err := x.clear(name); err != nil {
		return err
	}
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.LimitReader(r, h.Size))
	if err != nil {
		err = x.readError(err)
	}
	err = errors.Join(err, f.Chown(h.Uid, h.Gid), f.Chmod(fs.FileMode(h.Mode)&0o777), f.Close())
	if err != nil {
		return err
	}
	if h.ModTime.Unix() < 0 || h.ModTime.Year() > 2200 {
		h.ModTime = epoch
	}
	return x.root.Chtimes(name, time.Time{}, h.ModTime)
}

// whiteout hides what lower layers have at a path; what this layer has stays,
// whichever came first.
func (x *extractor) whiteout(dir, base string) error {
	if !x.isFolder(dir) {
		return nil // nothing there to hide; no link is followed
	}
	if base == ".wh..opq" {
		return x.hideBelow(dir)
	}
	if strings.HasPrefix(base, ".wh.") || base == "" || base == "." || base == ".." {
		return nil // aufs' own, or nonsense
	}
	return x.hide(path.Join(dir, base))
}

func (x *extractor) hide(name string) error {
	if !x.mine[name] {
		return x.clear(name)
	}
	if x.isFolder(name) {
		return x.hideBelow(name)
	}
	return nil
}

func (x *extractor) hideBelow(dir string) error {
	d, err := x.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if err := x.hide(path.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}
