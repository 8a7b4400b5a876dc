package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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
