package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

const diskDir = "/disk"

// A place is a folder that can be written: a part of the disk.
type place struct {
	path string // where it is seen
	part string // its folder on the disk
	mode fs.FileMode
	own  bool // belongs to the user
	must bool // the sandbox is no use without it
}

// places are all of them. One tmpfs is behind them, so that its size bounds all
// that can be written, wherever.
func (id identity) places() []place {
	list := []place{
		{"/tmp", "tmp", 0o777 | fs.ModeSticky, false, true},
		{"/var/tmp", "vartmp", 0o777 | fs.ModeSticky, false, false},
		{"/run", "run", 0o755, false, true},
		{"/dev/shm", "shm", 0o777 | fs.ModeSticky, false, false},
		{"/workspace", "workspace", 0o755, true, true},
	}
	add := func(path, part string) {
		path = filepath.Clean(path)
		if path == "/" {
			return // an image without a home for its user
		}
		for _, p := range list {
			if path == p.path || strings.HasPrefix(path, p.path+"/") {
				return
			}
		}
		list = append(list, place{path, part, 0o755, true, false})
	}
	add(id.user.Home, "home")
	add(id.workdir, "workdir")
	return list
}

// makeDisk mounts a fresh disk of the sandbox's size and puts its folders over the
// places that can be written, with what was there before. Before it a sandbox has
// the image's, after a warm start those of a small disk with warm kernels on it.
func (a *Agent) makeDisk(next, old identity) error {
	if old.mounted {
		// Only the mount point goes: the folders are mounted on their own.
		if err := unix.Unmount(diskDir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount old disk: %w", err)
		}
	}
	inodes := min(max(next.limits.Disk/(16<<10), 1024), 1<<20)
	opts := fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", next.limits.Disk, inodes)
	if err := unix.Mount("tmpfs", diskDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	held, err := a.holdMounts()
	if err != nil {
		return err
	}
	defer dropMounts(held)
	was := map[string]bool{}
	if old.mounted {
		for _, p := range old.places() {
			was[p.path] = true
		}
	}
	for _, p := range next.places() {
		if a.mountedAt(p.path) {
			continue // it can be written as it is, or is not meant to be
		}
		err := a.makePlace(p, next.user.User, was[p.path])
		switch {
		case err == nil:
		case p.must:
			return fmt.Errorf("%s: %w", p.path, err)
		default:
			a.log.Warn("folder stays read-only", "path", p.path, "err", err)
		}
	}
	return a.showMounts(held, next)
}

func (a *Agent) makePlace(p place, u arenero.User, mounted bool) error {
	st, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return unix.ENOTDIR
	}
	part := filepath.Join(diskDir, p.part)
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	if p.part != "shm" {
		c := copier{bytes: 64 << 20, entries: 10_000, skip: func(name string) bool { return a.mountedAt(filepath.Join(p.path, name)) }}
		if err := c.copy(p.path, part); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	if p.own {
		if err := os.Lchown(part, int(u.UID), int(u.GID)); err != nil {
			return err
		}
	}
	if err := os.Chmod(part, p.mode); err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(p.path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	return unix.Mount(part, p.path, "", unix.MS_BIND, "")
}

// A copier copies a small tree without leaving it: what a warm kernel left in
// /tmp may be a link to anywhere.
type copier struct {
	bytes   int64
	entries int
	skip    func(name string) bool // whether a folder is not to be copied
}

var errTooMuch = errors.New("too much to copy into memory")

func (c *copier) copy(from, to string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	return c.folder(src, dst, ".")
}

func (c *copier) folder(src, dst *os.Root, dir string) error {
	f, err := src.Open(dir)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(c.entries + 1)
	_ = f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		if c.entries--; c.entries < 0 {
			return errTooMuch
		}
		if err := c.entry(src, dst, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(src, dst *os.Root, name string) error {
	st, err := src.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sys, _ := st.Sys().(*unixStat)
	switch {
	case st.IsDir() && c.skip(name):
		return nil
	case st.IsDir():
		if err := dst.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := c.folder(src, dst, name); err != nil {
			return err
		}
	case st.Mode().IsRegular():
		if err := c.file(src, dst, name); err != nil {
			return err
		}
	case st.Mode().Type() == fs.ModeSymlink:
		target, err := src.Readlink(name)
		if err != nil {
			return err
		}
		if err := dst.Symlink(target, name); err != nil {
			return err
		}
		return dst.Lchown(name, int(sys.Uid), int(sys.Gid))
	default: // sockets, pipes: of no use in another place
		return nil
	}
	if err := dst.Lchown(name, int(sys.Uid), int(sys.Gid)); err != nil {
		return err
	}
	if err := dst.Chmod(name, st.Mode()&(fs.ModePerm|fs.ModeSticky)); err != nil {
		return err
	}
	return dst.Chtimes(name, st.ModTime(), st.ModTime())
}

func (c *copier) file(src, dst *os.Root, name string) error {
	in, err := src.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, c.bytes+1))
	if c.bytes -= n; c.bytes < 0 {
		err = errTooMuch
	}
	return errors.Join(err, out.Close())
}
