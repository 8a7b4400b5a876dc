package main

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

type cpCmd struct {
	remote

	From string `arg:"" help:"A file or a folder: here, or ID:PATH in a sandbox."`
	To   string `arg:"" help:"Where it goes: here, or ID:PATH in a sandbox."`
}

// Help is shown below the flags.
func (*cpCmd) Help() string {
	return `Examples:
  arenero cp data.csv ID:              into the work directory
  arenero cp project ID:/workspace/p   a folder with all that is in it
  arenero cp ID:result.png .

What is copied appears when it is whole, and its digest is compared. Of a folder that comes out of a sandbox, links and what is no
file are left out: what they name was not asked for.`
}

// Run copies a file or a folder into a sandbox or out of it.
func (v *cpCmd) Run(ctx context.Context, m *Main, c *cli) error {
	const op = "copy"
	ctx, stop := until(ctx)
	defer stop()
	fromID, from, fromIn := place(v.From)
	toID, to, toIn := place(v.To)
	if fromIn == toIn {
		return arenero.Errorf(arenero.Invalid, op, "", "one of the two is in a sandbox, the other is here").WithHint("write ID:PATH for the one in a sandbox")
	}
	id := fromID
	if toIn {
		id = toID
	}
	sb, err := v.sandbox(ctx, c, id)
	if err != nil {
		return err
	}
	name := from
	if !toIn {
		name = path.Base(from)
	}
	t := newTransfer(m, name)
	defer t.done()
	if toIn {
		return upload(ctx, sb, from, to, t)
	}
	left, err := download(ctx, sb, from, to, t)
	if left > 0 {
		fmt.Fprintf(m.Stderr, "arenero: %d links and other things that are no files were left out\n", left)
	}
	return err
}

// place reads ID:PATH. A path of this machine that holds a colon is written with
// a slash before it.
func place(s string) (id, p string, inside bool) {
	id, p, ok := strings.Cut(s, ":")
	if !ok || id == "" || strings.ContainsAny(id, "/.") {
		return "", s, false
	}
	return id, p, true
}

func upload(ctx context.Context, sb *client.Sandbox, from, to string, t *transfer) error {
	const op = "copy"
	st, err := os.Stat(from)
	if err != nil {
		return arenero.Errorf(arenero.NotFound, op, printable(from), "%w", err)
	}
	if st.IsDir() {
		r, w := io.Pipe()
		packed := make(chan error, 1)
		go func() { // joined below
			err := pack(w, from)
			_ = w.CloseWithError(err) // never fails
			packed <- err
		}()
		_, err := sb.WriteTree(ctx, cmp.Or(to, "."), t.through(r))
		_ = r.CloseWithError(io.ErrClosedPipe) // the packer may wait
		if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
			return arenero.Errorf(arenero.Unavailable, op, printable(from), "%w", perr)
		}
		return err
	}
	if to == "" || strings.HasSuffix(to, "/") {
		to += filepath.Base(from)
	}
	f, err := os.Open(from)
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, op, printable(from), "%w", err)
	}
	defer f.Close()
	_, err = sb.Upload(ctx, to, st.Mode().Perm(), f, t.report)
	return err
}

// pack writes a folder as a tar archive: files, folders and links.
func pack(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	if err := t.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return t.Close()
}

// download returns how many things of a folder were left out.
func download(ctx context.Context, sb *client.Sandbox, from, to string, t *transfer) (left int, err error) {
	info, err := sb.Stat(ctx, from)
	if err != nil {
		return 0, err
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		name := path.Base(path.Clean("/" + from))
		if !filepath.IsLocal(name) {
			return 0, arenero.Errorf(arenero.Invalid, "copy", "", "what should it be called here?").WithHint("name the target itself")
		}
		to = filepath.Join(to, name)
	}
	if info.Mode.IsDir() {
		r, err := sb.ReadTree(ctx, from)
		if err != nil {
			return 0, err
		}
		defer r.Close()
		return unpack(t.through(r), to)
	}
	f, err := sb.OpenFile(ctx, from, t.report)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return 0, save(to, 0o644|info.Mode.Perm()&0o111, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	})
}

// save writes a file whole or not at all.
func save(name string, mode fs.FileMode, fill func(io.Writer) error) error {
	const op = "write file"
	f, err := os.CreateTemp(filepath.Dir(name), ".arenero-*") // 0600
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, op, printable(name), "%w", err)
	}
	defer os.Remove(f.Name()) // gone after the rename
	err = fill(f)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return arenero.Errorf(arenero.CodeOf(err), op, printable(name), "%w", err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return arenero.Errorf(arenero.Unavailable, op, printable(name), "%w", err)
	}
	return nil
}

// unpack writes a tar archive below a folder and nowhere else: what is in it was
// written in a sandbox. Links and all that is no file or folder are left out, and
// counted.
func unpack(r io.Reader, dir string) (left int, err error) {
	const op = "unpack folder"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, arenero.Errorf(arenero.Unavailable, op, printable(dir), "%w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, arenero.Errorf(arenero.Unavailable, op, printable(dir), "%w", err)
	}
	defer root.Close()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return left, nil
		}
		if err != nil {
			return left, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return left, arenero.Errorf(arenero.Internal, op, "", "it has the name %q", clip(printable(h.Name), 100))
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			left++
			continue
		}
		if err := unpackOne(root, t, h, name); err != nil {
			return left, arenero.Errorf(arenero.Unavailable, op, printable(name), "%w", err)
		}
	}
}

func unpackOne(root *os.Root, t io.Reader, h *tar.Header, name string) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fs.FileMode(h.Mode).Perm()|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, t)
	return errors.Join(err, f.Close())
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}
