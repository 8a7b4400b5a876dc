package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// A fileIn is a file or folder that goes into the sandbox.
type fileIn struct{ host, guest string }

// parseFile reads "host:guest". Without a second part the file keeps its name, in
// the work directory. A host path may hold colons if it names something.
func parseFile(s string) (fileIn, error) {
	host, guest := s, ""
	if _, err := os.Lstat(s); err != nil {
		i := strings.LastIndexByte(s, ':')
		if i > 0 {
			host, guest = s[:i], s[i+1:]
		}
	}
	if guest == "" {
		abs, err := filepath.Abs(host)
		if err != nil {
			return fileIn{}, arenero.Errorf(arenero.Invalid, "read file", printable(host), "%w", err)
		}
		guest = filepath.Base(abs)
	} else if strings.HasSuffix(guest, "/") {
		guest += filepath.Base(host)
	}
	if strings.ContainsRune(guest, 0) {
		return fileIn{}, arenero.Errorf(arenero.Invalid, "read file", printable(s), "the path inside the sandbox has a NUL byte")
	}
	if _, err := os.Stat(host); err != nil {
		return fileIn{}, arenero.Errorf(arenero.Invalid, "read file", printable(host), "%w", err).
			WithHint("--file takes HOST or HOST:GUEST")
	}
	return fileIn{host: host, guest: guest}, nil
}

// copyIn puts a file, or a folder with all regular files below it, into the
// sandbox. Links below a folder are not followed: what they name was not asked for.
func copyIn(ctx context.Context, g arenero.Guest, f fileIn, note io.Writer) error {
	info, err := os.Stat(f.host)
	if err != nil {
		return arenero.Errorf(arenero.Invalid, "read file", printable(f.host), "%w", err)
	}
	if !info.IsDir() {
		return copyFileIn(ctx, g, f.host, f.guest, info)
	}
	return filepath.WalkDir(f.host, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return arenero.Errorf(arenero.Invalid, "read folder", printable(name), "%w", err)
		}
		rel, err := filepath.Rel(f.host, name)
		if err != nil {
			return arenero.Errorf(arenero.Internal, "read folder", printable(name), "%w", err)
		}
		to := path.Join(f.guest, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return g.MakeDir(ctx, "", to, 0o755)
		case !d.Type().IsRegular():
			fmt.Fprintf(note, "arenero: %s is not a regular file and was left out\n", printable(name))
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return arenero.Errorf(arenero.Invalid, "read file", printable(name), "%w", err)
		}
		return copyFileIn(ctx, g, name, to, info)
	})
}

func copyFileIn(ctx context.Context, g arenero.Guest, name, to string, info fs.FileInfo) error {
	f, err := os.Open(name)
	if err != nil {
		return arenero.Errorf(arenero.Invalid, "read file", printable(name), "%w", err)
	}
	defer f.Close()
	_, err = g.WriteFile(ctx, "", to, info.Mode().Perm(), f)
	return err
}

// An outDir collects what a run leaves, below one folder of the host. The names
// come from the sandbox: os.Root keeps them below that folder whatever they are.
type outDir struct {
	dir   string
	root  *os.Root
	taken map[string]bool // names used for pictures
}

func openOut(dir string) (*outDir, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, arenero.Errorf(arenero.Invalid, "make output folder", printable(dir), "%w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, "open output folder", printable(dir), "%w", err)
	}
	return &outDir{dir: dir, root: root, taken: map[string]bool{}}, nil
}

func (o *outDir) close() error { return o.root.Close() }

// picture stores one picture and returns the path to show.
func (o *outDir) picture(kind string, data []byte) (string, error) {
	for n := 1; ; n++ {
		name := fmt.Sprintf("figure-%d.%s", n, kind)
		if o.taken[name] {
			continue
		}
		o.taken[name] = true
		if err := o.root.WriteFile(name, data, 0o644); err != nil {
			return "", arenero.Errorf(arenero.Invalid, "save picture", filepath.Join(o.dir, name), "%w", err)
		}
		return filepath.Join(o.dir, name), nil
	}
}

// A listing is what a folder of the sandbox holds, by path.
type listing map[string]arenero.FileInfo

// depth is how far below the work directory files are collected.
const depth = 32

func list(ctx context.Context, g arenero.Guest, dir string) (listing, error) {
	entries, err := g.ReadDir(ctx, "", dir, depth)
	if err != nil {
		return nil, err
	}
	l := make(listing, len(entries))
	for _, e := range entries {
		l[e.Path] = e
	}
	return l, nil
}

// collect copies out every regular file below dir that is new or changed since
// before. It returns the paths written; limit bounds their bytes.
func (o *outDir) collect(ctx context.Context, g arenero.Guest, dir string, before listing, limit int64) ([]string, error) {
	after, err := list(ctx, g, dir)
	if err != nil {
		return nil, err
	}
	var saved []string
	for name, e := range after {
		old, was := before[name]
		if !e.Mode.IsRegular() || was && old.Size == e.Size && old.Modified.Equal(e.Modified) || isCache(name) {
			continue
		}
		n, to, err := o.fetch(ctx, g, dir, name, limit)
		if err != nil {
			return saved, err
		}
		limit -= n
		saved = append(saved, to)
	}
	return saved, nil
}

// isCache says whether a file is one that programs leave for themselves.
func isCache(name string) bool {
	return strings.Contains(name, "/__pycache__/") || strings.Contains(name, "/.ipynb_checkpoints/")
}

func (o *outDir) fetch(ctx context.Context, g arenero.Guest, dir, name string, limit int64) (int64, string, error) {
	rel := strings.TrimPrefix(path.Clean("/"+strings.TrimPrefix(name, dir)), "/")
	if o.taken[rel] {
		rel += ".file" // the program made a file of the name its picture got
	}
	if rel == "" || !filepath.IsLocal(rel) {
		return 0, "", arenero.Errorf(arenero.Internal, "collect file", printable(name), "the sandbox gave a path that leads out of %s", dir)
	}
	r, info, err := g.ReadFile(ctx, "", name, 0, -1)
	if err != nil {
		return 0, "", err
	}
	defer r.Close()
	wrap := func(err error) error {
		return arenero.Errorf(arenero.Invalid, "save file", printable(filepath.Join(o.dir, rel)), "%w", err)
	}
	if err := o.root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
		return 0, "", wrap(err)
	}
	w, err := o.root.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644|info.Mode.Perm()&0o111)
	if err != nil {
		return 0, "", wrap(err)
	}
	n, err := io.Copy(w, io.LimitReader(r, limit+1))
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return n, "", wrap(err)
	case n > limit:
		return n, "", arenero.Errorf(arenero.TooLarge, "collect file", printable(name), "more than the sandbox's disk came out of it")
	}
	_ = o.root.Chtimes(rel, time.Time{}, info.Modified) // a convenience: the file is there without it
	return n, filepath.Join(o.dir, rel), nil
}
