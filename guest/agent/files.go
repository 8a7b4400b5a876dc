package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	case strings.Contains(err.Error(), "path escapes from parent"): // os has no name for it
		code, hint = arenero.Denied, "a link leads out of the folder"
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
