package agent

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// A tree is a folder that is packed or unpacked, below which alone anything
// happens: a Root follows no link out of it, also not one that is made meanwhile.
type tree struct {
	a    *Agent
	user account
	op   string
	name string // for errors
	root *os.Root
	buf  []byte
}

// tree opens a folder, and makes it first if it is to be written.
func (a *Agent) tree(op, user string, where []byte, write bool) (*tree, error) {
	u, name, err := a.where(op, user, where)
	if err != nil {
		return nil, err
	}
	t := &tree{a: a, user: u, op: op, name: name, buf: make([]byte, wire.MaxData)}
	err = a.as(u, func() error {
		if write {
			if err := os.MkdirAll(name, 0o755); err != nil {
				return err
			}
		}
		st, err := os.Stat(name)
		if err == nil && !st.IsDir() { // OpenRoot says it without a number
			err = unix.ENOTDIR
		}
		if err != nil {
			return err
		}
		t.root, err = os.OpenRoot(name)
		return err
	})
	if err != nil {
		return nil, fileError(op, name, err)
	}
	return t, nil
}

func (t *tree) close() { _ = t.root.Close() }

// as is [Agent.as] of the tree's user.
func (t *tree) as(f func() error) error { return t.a.as(t.user, f) }

// fail names what an error is about.
func (t *tree) fail(name string, err error) error {
	return fileError(t.op, path.Join(t.name, name), err)
}

// dirBatch is how many entries of a folder are held at a time.
const dirBatch = 512

// pack writes the folder as an archive.
func (t *tree) pack(w io.Writer) error {
	out := bufio.NewWriterSize(w, wire.MaxData)
	p := packer{tree: t, tar: tar.NewWriter(out)}
	for todo := []string{"."}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		below, err := p.folder(dir)
		if err != nil {
			return err
		}
		todo = append(todo[:len(todo)-1], below...)
	}
	return errors.Join(p.tar.Close(), out.Flush())
}

type packer struct {
	*tree

	tar   *tar.Writer
	count int
}

// An entry is one thing to pack.
type entry struct {
	name string
	st   fs.FileInfo
	link string
	file *os.File
}

// folder packs what is in a folder and returns the folders in it. One that is gone
// meanwhile is empty.
func (p *packer) folder(dir string) (below []string, err error) {
	var d *os.File
	err = p.as(func() error {
		var err error
		d, err = p.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && dir != "." {
		return nil, nil
	}
	if err != nil {
		return nil, p.fail(dir, err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(dirBatch)
		for _, name := range names {
			e := entry{name: path.Join(dir, name)}
			if err := p.entry(&e); err != nil {
				return nil, p.fail(e.name, err)
			}
			if e.st != nil && e.st.IsDir() {
				below = append(below, e.name)
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, p.fail(dir, err)
		}
	}
}

// entry packs one thing; what is gone meanwhile, or is no file, folder or link, is
// left out.
func (p *packer) entry(e *entry) error {
	if p.count++; p.count > arenero.MaxTreeEntries {
		return arenero.Errorf(arenero.TooLarge, p.op, "", "more than %d entries", arenero.MaxTreeEntries)
	}
	if len(e.name) >= maxPath {
		return unix.ENAMETOOLONG
	}
	err := p.as(func() (err error) {
		if e.st, err = p.root.Lstat(e.name); err != nil {
			return err
		}
		switch e.st.Mode().Type() {
		case fs.ModeSymlink:
			e.link, err = p.root.Readlink(e.name)
		case 0:
			// What took its place meanwhile is not waited for and not acted upon.
			if e.file, err = p.root.OpenFile(e.name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0); err == nil {
				e.st, err = e.file.Stat()
			}
		}
		return err
	})
	if e.file != nil {
		defer e.file.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		e.st = nil
		return nil
	}
	if err != nil {
		return err
	}
	return p.write(e)
}

func (p *packer) write(e *entry) error {
	h := &tar.Header{
		Name: e.name, Mode: int64(e.st.Mode().Perm()), ModTime: e.st.ModTime(), Format: tar.FormatPAX,
	}
	switch e.st.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	case 0:
		if e.file == nil { // it was something else a moment ago
			return nil
		}
		h.Typeflag, h.Size = tar.TypeReg, e.st.Size()
	default:
		return nil
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	n, err := io.CopyBuffer(p.tar, io.LimitReader(onlyReader{e.file}, h.Size), p.buf)
	if err == nil && n < h.Size { // it shrank; the header is out
		_, err = io.CopyBuffer(p.tar, io.LimitReader(zeros{}, h.Size-n), p.buf)
	}
	return err
}

// onlyReader hides what would make io.CopyBuffer leave the buffer aside.
type onlyReader struct{ io.Reader }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
