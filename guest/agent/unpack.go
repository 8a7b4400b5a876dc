package agent

import (
	"archive/tar"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
)

// maxHeld bounds the names of folders whose modes are set at the end.
const maxHeld = 64 << 20

// unpack unpacks an archive into the folder.
func (t *tree) unpack(r io.Reader) (arenero.TreeInfo, error) {
	u := unpacker{tree: t, tar: tar.NewReader(r)}
	for {
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.info, u.bad(err)
		}
		if err := u.entry(h); err != nil {
			return u.info, err
		}
	}
	return u.info, u.finish()
}

type unpacker struct {
	*tree

	tar   *tar.Reader
	info  arenero.TreeInfo
	count int
	dirs  []folder
	held  int
}

// A folder gets its mode at the end: it may be one that nothing can be put into.
type folder struct {
	name string
	mode fs.FileMode
	time time.Time
}

// bad is an error of the archive or of the stream it comes in.
func (u *unpacker) bad(err error) error {
	if errors.As(err, new(*arenero.Error)) || errors.As(err, new(*connect.Error)) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return arenero.Errorf(arenero.Invalid, u.op, "", "the archive ends in the middle of an entry")
	}
	return arenero.Errorf(arenero.Invalid, u.op, "", "%w", err).WithHint("send a tar archive that is not compressed")
}

// check returns the name of an entry below the folder.
func (u *unpacker) check(what, name string) (string, error) {
	refuse := func(why string) (string, error) {
		return "", arenero.Errorf(arenero.Invalid, u.op, "", "%s %.400q %s", what, name, why)
	}
	switch {
	case len(name) >= maxPath:
		return refuse("is too long")
	case strings.ContainsRune(name, 0):
		return refuse("has a zero byte")
	case strings.HasPrefix(name, "/"):
		return refuse("is not below the folder")
	case slices.Contains(strings.Split(name, "/"), ".."):
		return refuse(`has a part ".."`)
	}
	return path.Clean(name), nil
}

func (u *unpacker) entry(h *tar.Header) error {
	if u.count++; u.count > arenero.MaxTreeEntries {
		return arenero.Errorf(arenero.TooLarge, u.op, "", "more than %d entries", arenero.MaxTreeEntries)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // of no meaning to us
	}
	name, err := u.check("the name", h.Name)
	if err != nil {
		return err
	}
	if sparse(h) {
		return arenero.Errorf(arenero.Invalid, u.op, "", "%.400q is a sparse file", name).WithHint("pack it without --sparse")
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	if h.Typeflag == tar.TypeDir {
		return u.folder(name, mode, h.ModTime)
	}
	if name == "." {
		return arenero.Errorf(arenero.Invalid, u.op, "", "an entry without a name")
	}
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.file(name, mode, h)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
			return arenero.Errorf(arenero.Invalid, u.op, "", "%.400q links to %.400q", name, h.Linkname)
		}
		// Where it points to is the user's own affair: nothing here follows it out.
		err = u.place(name, func(temp string) error { return u.root.Symlink(h.Linkname, temp) })
	case tar.TypeLink:
		target, cerr := u.check("the link to", h.Linkname)
		if cerr != nil {
			return cerr
		}
		err = u.place(name, func(temp string) error { return u.root.Link(target, temp) })
	default:
		return arenero.Errorf(arenero.Invalid, u.op, "", "%.400q is no file, folder or link (type %q)", name, h.Typeflag)
	}
	if err == nil {
		u.info.Files++
	}
	return err
}

// sparse reports whether a file's size is not that of its data.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func (u *unpacker) folder(name string, mode fs.FileMode, at time.Time) error {
	if name == "." {
		return nil // it is the caller's, as it is
	}
	if u.held += len(name) + 64; u.held > maxHeld {
		return arenero.Errorf(arenero.TooLarge, u.op, "", "too many folders with names too long")
	}
	if err := u.as(func() error { return u.makeDir(name) }); err != nil {
		return u.fail(name, err)
	}
	u.dirs = append(u.dirs, folder{name, mode, at})
	return nil
}

// makeDir makes a folder that can be written into for now. An archive may have a
// folder where a link to one is: that is followed, as far as it stays inside.
func (u *unpacker) makeDir(name string) error {
	err := u.root.Mkdir(name, 0o700)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		return u.makeDir(name)
	case errors.Is(err, fs.ErrExist):
		st, err := u.root.Stat(name)
		if err == nil && !st.IsDir() {
			return fs.ErrExist
		}
		return err
	}
	return err
}

// file writes a file under a name of its own, and gives it its name at the end.
func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header) error {
	temp, err := u.temp(name)
	if err != nil {
		return err
	}
	var f *os.File
	err = u.as(func() (err error) {
		f, err = u.inFolder(temp, func() (*os.File, error) {
			return u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		})
		return err
	})
	if err != nil {
		return u.fail(name, err)
	}
	n, err := io.CopyBuffer(onlyWriter{f}, onlyReader{u.tar}, u.buf)
	u.info.Bytes += n
	broken := errors.As(err, new(*fs.PathError)) // of the file, not of the archive
	if err == nil {
		err = u.as(func() error {
			if err := f.Chmod(mode); err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			if at, ok := sane(h.ModTime); ok {
				if err := u.root.Chtimes(temp, at, at); err != nil {
					return err
				}
			}
			return u.root.Rename(temp, name)
		})
		broken = true
	}
	if err == nil {
		return nil
	}
	_ = f.Close()
	_ = u.as(func() error { return u.root.Remove(temp) }) // the first error is the one to tell
	if broken {
		return u.fail(name, err)
	}
	return u.bad(err)
}

// place makes something under a name of its own, and moves it where it belongs.
func (u *unpacker) place(name string, create func(temp string) error) error {
	temp, err := u.temp(name)
	if err != nil {
		return err
	}
	return u.fail(name, u.as(func() error {
		if _, err := u.inFolder(temp, func() (*os.File, error) { return nil, create(temp) }); err != nil {
			return err
		}
		err := u.root.Rename(temp, name)
		// Two names of one file are not replaced by one another; both stay.
		if rerr := u.root.Remove(temp); err == nil && rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return rerr
		}
		return err
	}))
}

// inFolder makes the folder that something is to be in, if that is missing.
func (u *unpacker) inFolder(name string, create func() (*os.File, error)) (*os.File, error) {
	f, err := create()
	if errors.Is(err, fs.ErrNotExist) {
		if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return nil, err
		}
		return create()
	}
	return f, err
}

func (u *unpacker) temp(name string) (string, error) {
	var r [8]byte
	_, _ = rand.Read(r[:]) // never fails
	temp := path.Join(path.Dir(name), ".arenero-"+hex.EncodeToString(r[:]))
	if len(temp) >= maxPath {
		return "", arenero.Errorf(arenero.Invalid, u.op, "", "the name %.400q is too long", name)
	}
	return temp, nil
}

// finish gives the folders their modes and times, the inner ones first.
func (u *unpacker) finish() error {
	for _, d := range slices.Backward(u.dirs) {
		err := u.as(func() error {
			if at, ok := sane(d.time); ok {
				if err := u.root.Chtimes(d.name, at, at); err != nil {
					return err
				}
			}
			return u.root.Chmod(d.name, d.mode)
		})
		// It may be another's, or a later entry may have taken its place.
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			return u.fail(d.name, err)
		}
	}
	return nil
}

// sane reports whether a time is one that a file can have.
func sane(at time.Time) (time.Time, bool) {
	return at, at.Unix() >= 0 && at.Unix() < 1<<33
}

// onlyWriter hides what would make io.CopyBuffer leave the buffer aside.
type onlyWriter struct{ io.Writer }
