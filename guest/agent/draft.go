package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero/guest/wire"
)

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
