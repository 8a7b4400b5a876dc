package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// epoch is the time of every file that a build makes, so that two builds of the
// same things have the same digest.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// readTree walks the folder root and returns it as inodes. This is the one gate
// into an image: set-user-id and set-group-id bits, extended attributes (file
// capabilities among them), devices, pipes and sockets do not pass. A time not
// before started is that of the build, not of the file, and becomes epoch.
//
// The folder must not change until the image is written; root is closed by the
// caller after that.
func readTree(ctx context.Context, root *os.Root, started time.Time) (*inode, error) {
	t := &treeReader{ctx: ctx, root: root, started: started, links: map[fileID]*inode{}}
	info, err := root.Lstat(".")
	if err != nil {
		return nil, err
	}
	return t.read(".", info)
}

// fileID names a file by what hard links share.
type fileID struct{ dev, ino uint64 }

type treeReader struct {
	ctx     context.Context
	root    *os.Root
	started time.Time
	links   map[fileID]*inode
	count   int
}

// errNoPlace is of what has no place in an image.
var errNoPlace = errors.New("no place in an image")

// read makes the inode of one path and, for a folder, of all below it.
func (t *treeReader) read(name string, info fs.FileInfo) (*inode, error) {
	if t.count++; t.count%1024 == 0 {
		if err := t.ctx.Err(); err != nil {
			return nil, err
		}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("stat %q: no owner", name)
	}
	n := &inode{uid: st.Uid, gid: st.Gid, mtime: info.ModTime(), mode: uint16(info.Mode().Perm())}
	if !n.mtime.Before(t.started) || n.mtime.Unix() < 0 {
		n.mtime = epoch
	}
	switch info.Mode().Type() {
	case 0:
		id := fileID{st.Dev, st.Ino}
		if first := t.links[id]; first != nil {
			return first, nil
		}
		if st.Nlink > 1 {
			t.links[id] = n
		}
		n.mode |= modeFile
		n.size = info.Size()
		n.open = func() (io.ReadCloser, error) {
			return t.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		}
	case fs.ModeSymlink:
		target, err := t.root.Readlink(name)
		if err != nil {
			return nil, err
		}
		n.mode = modeLink | 0o777
		n.target = target
	case fs.ModeDir:
		n.mode |= modeDir
		if info.Mode()&fs.ModeSticky != 0 {
			n.mode |= 0o1000
		}
		return n, t.readDir(name, n)
	default:
		return nil, errNoPlace
	}
	return n, nil
}

func (t *treeReader) readDir(name string, n *inode) error {
	d, err := t.root.Open(name)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return err
	}
	slices.SortFunc(names, strings.Compare)
	for _, base := range names {
		child := path.Join(name, base)
		info, err := t.root.Lstat(child)
		if err != nil {
			return err
		}
		c, err := t.read(child, info)
		if errors.Is(err, errNoPlace) {
			continue
		}
		if err != nil {
			return err
		}
		n.entries = append(n.entries, dirent{base, c})
	}
	return nil
}

// epochDay is epoch as a count of days, the way /etc/shadow has it.
func epochDay() string { return strconv.FormatInt(epoch.Unix()/86400, 10) }
