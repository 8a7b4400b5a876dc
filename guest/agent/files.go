package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// Everything here is done with the rights of the user named in the request: the
// calls that take a path run in [Agent.as]. Once a file is open its rights have
// been checked, and its bytes move on any thread.

const maxPath = 4096

// where checks a path of a request and makes it absolute.
func (a *Agent) where(op, user string, path []byte) (account, string, error) {
	if len(path) == 0 || len(path) >= maxPath {
		return account{}, "", arenero.Errorf(arenero.Invalid, op, "", "a path of %d bytes", len(path))
	}
	if slices.Contains(path, 0) {
		return account{}, "", arenero.Errorf(arenero.Invalid, op, "", "the path has a zero byte")
	}
	u, err := a.account(user)
	return u, a.identity().path(string(path)), err
}

// fileError gives an error of the system its code.
func fileError(op, path string, err error) error {
	var own *arenero.Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	code := arenero.Internal
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = arenero.NotFound
	case errors.Is(err, fs.ErrPermission):
		code = arenero.Denied
	case errors.Is(err, unix.EROFS):
		code, hint = arenero.Denied, "the image is read-only; write below /workspace, /tmp or the home folder"
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EBUSY), errors.Is(err, unix.ETXTBSY):
		code = arenero.Conflict
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		code, hint = arenero.Exhausted, "the sandbox's disk or another of its limits is used up"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ESPIPE):
		code = arenero.Invalid
	case errors.Is(err, context.Canceled):
		code = arenero.Canceled
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		err = le.Err
	}
	e := arenero.Errorf(code, op, "", "%.400q: %w", path, err)
	if hint != "" {
		return e.WithHint("%s", hint)
	}
	return e
}

// describe makes what the host is told of a file.
func describe(path string, st fs.FileInfo) *wire.FileInfo {
	info := &wire.FileInfo{
		Path: []byte(path), Size: st.Size(), Mode: uint32(st.Mode()), ModifiedUnixNanos: st.ModTime().UnixNano(),
	}
	if sys, ok := st.Sys().(*unixStat); ok {
		info.Owner, info.Group = strconv.Itoa(int(sys.Uid)), strconv.Itoa(int(sys.Gid))
	}
	return info
}

// names replaces the numbers of owner and group by names, once each.
type names struct{ users, groups map[string]string }

func newNames() names { return names{map[string]string{}, map[string]string{}} }

func (n names) resolve(info *wire.FileInfo) *wire.FileInfo {
	info.Owner = lookup(n.users, "/etc/passwd", info.GetOwner())
	info.Group = lookup(n.groups, "/etc/group", info.GetGroup())
	return info
}

func lookup(known map[string]string, file, id string) string {
	if name, ok := known[id]; ok {
		return name
	}
	name := id
	_ = eachLine(file, 3, func(f []string) bool { // a number will do where it is missing
		if f[2] == id {
			name = f[0]
		}
		return f[2] != id
	})
	known[id] = name
	return name
}

func (a *Agent) stat(user string, path []byte) (*wire.FileInfo, error) {
	const op = "stat file"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return nil, err
	}
	var info *wire.FileInfo
	err = a.as(u, func() error {
		st, err := os.Lstat(name)
		if err != nil {
			return err
		}
		info = describe(name, st)
		if st.Mode()&fs.ModeSymlink != 0 {
			link, err := os.Readlink(name)
			info.Link = []byte(link)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fileError(op, name, err)
	}
	return newNames().resolve(info), nil
}

// readDir visits what is below a folder, in batches, as deep as asked.
func (a *Agent) readDir(user string, path []byte, depth int, send func([]*wire.FileInfo) error) error {
	const op = "read folder"
	u, top, err := a.where(op, user, path)
	if err != nil {
		return err
	}
	type level struct {
		path  string
		depth int
	}
	todo, count, who := []level{{top, 1}}, 0, newNames()
	for len(todo) > 0 {
		dir := todo[0]
		todo = todo[1:]
		var batch []*wire.FileInfo
		err := a.as(u, func() error {
			entries, err := os.ReadDir(dir.path)
			if err != nil && len(entries) == 0 {
				return err
			}
			if count += len(entries); count > arenero.MaxEntries {
				return arenero.Errorf(arenero.TooLarge, op, "", "%.400q: more than %d entries", top, arenero.MaxEntries)
			}
			for _, e := range entries {
				name := filepath.Join(dir.path, e.Name())
				st, err := e.Info()
				if err != nil {
					continue // gone meanwhile
				}
				info := describe(name, st)
				if st.Mode()&fs.ModeSymlink != 0 {
					if link, err := os.Readlink(name); err == nil {
						info.Link = []byte(link)
					}
				}
				batch = append(batch, info)
				if e.IsDir() && dir.depth < max(depth, 1) {
					todo = append(todo, level{name, dir.depth + 1})
				}
			}
			return nil
		})
		if err != nil {
			if dir.depth > 1 && !errors.As(err, new(*arenero.Error)) {
				continue // a folder below that is closed to the user, or gone
			}
			return fileError(op, dir.path, err)
		}
		for len(batch) > 0 {
			n := min(len(batch), 500)
			for _, info := range batch[:n] {
				who.resolve(info)
			}
			if err := send(batch[:n]); err != nil {
				return err
			}
			batch = batch[n:]
		}
	}
	return nil
}

// openRegular opens a file that can be read to an end: nothing that would block or
// act when it is opened or read.
func openRegular(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = notRegular("read file", name, st.Mode())
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

func notRegular(op, name string, mode fs.FileMode) error {
	what := "a special file"
	switch mode.Type() {
	case fs.ModeDir:
		what = "a folder"
	case fs.ModeNamedPipe:
		what = "a named pipe"
	case fs.ModeSocket:
		what = "a socket"
	}
	return arenero.Errorf(arenero.Invalid, op, "", "%.400q is %s", name, what)
}

func (a *Agent) openFile(user string, path []byte) (*os.File, *wire.FileInfo, error) {
	const op = "read file"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return nil, nil, err
	}
	var f *os.File
	var info *wire.FileInfo
	err = a.as(u, func() error {
		st, err := os.Stat(name) // a device must not even be opened
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return notRegular(op, name, st.Mode())
		}
		if f, st, err = openRegular(name); err != nil {
			return err
		}
		info = describe(name, st)
		return nil
	})
	if err != nil {
		return nil, nil, fileError(op, name, err)
	}
	return f, newNames().resolve(info), nil
}

// A draft is a file that is being written: under a name of its own, in the folder
// where it will appear at once.
type draft struct {
	a    *Agent
	user account
	name string
	temp string
	mode fs.FileMode
	f    *os.File
}

func (a *Agent) newDraft(user string, path []byte, mode fs.FileMode) (*draft, error) {
	const op = "write file"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return nil, err
	}
	d := &draft{a: a, user: u, mode: mode & fs.ModePerm}
	err = a.as(u, func() error {
		if name, err = behindLinks(name); err != nil {
			return err
		}
		d.name = name
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch st, err := os.Lstat(name); {
		case err == nil && !st.Mode().IsRegular():
			return notRegular(op, name, st.Mode())
		case err == nil && d.mode == 0:
			d.mode = st.Mode().Perm()
		}
		if d.mode == 0 {
			d.mode = 0o644
		}
		var r [8]byte
		_, _ = rand.Read(r[:]) // never fails
		d.temp = filepath.Join(filepath.Dir(name), ".arenero-"+hex.EncodeToString(r[:]))
		d.f, err = os.OpenFile(d.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return nil, fileError(op, name, err)
	}
	return d, nil
}

// behindLinks follows symbolic links at the end of a path, so that writing through
// one changes the file and leaves the link.
func behindLinks(name string) (string, error) {
	for range 40 {
		link, err := os.Readlink(name)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist):
			return name, nil
		case err != nil:
			return name, err
		case filepath.IsAbs(link):
			name = link
		default:
			name = filepath.Join(filepath.Dir(name), link)
		}
	}
	return name, unix.ELOOP
}

func (d *draft) Write(b []byte) (int, error) {
	n, err := d.f.Write(b)
	return n, fileError("write file", d.name, err)
}

// commit makes the file appear.
func (d *draft) commit() (*wire.FileInfo, error) {
	var info *wire.FileInfo
	err := d.a.as(d.user, func() error {
		if err := d.f.Chmod(d.mode); err != nil {
			return err
		}
		st, err := d.f.Stat()
		if err != nil {
			return err
		}
		if err := d.f.Close(); err != nil {
			return err
		}
		info = describe(d.name, st)
		return os.Rename(d.temp, d.name)
	})
	if err != nil {
		d.abandon()
		return nil, fileError("write file", d.name, err)
	}
	return newNames().resolve(info), nil
}

// abandon leaves nothing behind.
func (d *draft) abandon() {
	_ = d.f.Close()
	_ = d.a.as(d.user, func() error { return os.Remove(d.temp) }) // nobody is left to tell
}

func (a *Agent) makeDir(user string, path []byte, mode fs.FileMode) error {
	const op = "make folder"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return err
	}
	if mode &= fs.ModePerm; mode == 0 {
		mode = 0o755
	}
	return fileError(op, name, a.as(u, func() error { return os.MkdirAll(name, mode) }))
}

func (a *Agent) move(user string, from, to []byte) error {
	const op = "move file"
	u, src, err := a.where(op, user, from)
	if err != nil {
		return err
	}
	_, dst, err := a.where(op, user, to)
	if err != nil {
		return err
	}
	return fileError(op, src, a.as(u, func() error {
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return err
		}
		err := os.Rename(src, dst)
		if errors.Is(err, unix.EXDEV) { // the places that can be written are mounts of their own
			return moveAcross(src, dst)
		}
		return err
	}))
}

// moveAcross moves to another mount: a copy that appears at once, then the removal.
func moveAcross(src, dst string) error {
	st, err := os.Lstat(src)
	if err != nil {
		return err
	}
	var r [8]byte
	_, _ = rand.Read(r[:]) // never fails
	temp := filepath.Join(filepath.Dir(dst), ".arenero-"+hex.EncodeToString(r[:]))
	err = func() error {
		switch {
		case st.IsDir():
			if err := os.Mkdir(temp, 0o700); err != nil {
				return err
			}
			if err := os.CopyFS(temp, os.DirFS(src)); err != nil {
				return err
			}
			return os.Chmod(temp, st.Mode().Perm())
		case st.Mode().IsRegular():
			in, _, err := openRegular(src)
			if err != nil {
				return err
			}
			defer in.Close()
			out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, st.Mode().Perm())
			if err != nil {
				return err
			}
			_, err = io.Copy(out, in)
			return errors.Join(err, out.Chmod(st.Mode().Perm()), out.Close())
		case st.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(src)
			if err != nil {
				return err
			}
			return os.Symlink(link, temp)
		}
		return notRegular("move file", src, st.Mode())
	}()
	if err == nil {
		err = os.Rename(temp, dst)
	}
	if err != nil {
		_ = os.RemoveAll(temp) // the first error is the one to tell
		return err
	}
	return os.RemoveAll(src)
}

func (a *Agent) remove(user string, path []byte) error {
	const op = "remove file"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return err
	}
	return fileError(op, name, a.as(u, func() error {
		if _, err := os.Lstat(name); err != nil {
			return err
		}
		return os.RemoveAll(name)
	}))
}

func (a *Agent) chmod(user string, path []byte, mode fs.FileMode) error {
	const op = "change mode"
	u, name, err := a.where(op, user, path)
	if err != nil {
		return err
	}
	return fileError(op, name, a.as(u, func() error {
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() && !st.IsDir() {
			return notRegular(op, name, st.Mode())
		}
		return os.Chmod(name, mode&fs.ModePerm)
	}))
}
