package image

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// Build builds the image of a recipe and gives it the recipe's name, which until
// then stands for what it did before. A second build of the same name waits for
// the first, and takes its result when the recipes are equal. It needs root and
// minutes.
//
// Errors: Invalid (recipe), Denied (not root), Unavailable (a tool or the mirror
// is missing), Exhausted (disk full), Canceled. None of them leaves anything.
func (s *Store) Build(ctx context.Context, r Recipe, p Progress) (arenero.Image, error) {
	const op = "build image"
	if err := r.check(); err != nil {
		return arenero.Image{}, err
	}
	begun := time.Now()
	l, waited, err := waitLock(ctx, s.path("locks", fileName(r.Name)), func() {
		p.step("wait for another build of "+r.Name, 0, 0)
	})
	if err != nil {
		return arenero.Image{}, fail(op, r.Name, err)
	}
	defer l.unlock()
	if waited {
		d, err := s.Inspect(ctx, r.Name)
		if err == nil && d.Recipe == r.Digest() && !d.Created.Before(begun.UTC().Truncate(time.Second)) {
			return d.Image, nil
		}
	}
	img, err := s.build(ctx, &r, p)
	return img, fail(op, r.Name, err)
}

func (s *Store) build(ctx context.Context, r *Recipe, p Progress) (arenero.Image, error) {
	w, err := s.newWork("build")
	if err != nil {
		return arenero.Image{}, err
	}
	defer w.done()
	if err := s.room(minRoom); err != nil {
		return arenero.Image{}, err
	}
	root := filepath.Join(w.path, "root")
	// Times before a second ago are those of packages; coarse clocks of file
	// systems make it two.
	started := time.Now().Add(-2 * time.Second)
	if err := debootstrap(ctx, r, w, root, p); err != nil {
		return arenero.Image{}, err
	}
	if err := r.install(ctx, &chroot{root, w}, p); err != nil {
		return arenero.Image{}, err
	}
	t := &tree{path: root, started: started, user: r.User}
	t.details.Image = arenero.Image{
		Name: r.Name, Source: "recipe " + r.Name,
		Env: maps.Clone(r.Env), Workdir: r.Workdir, Start: slices.Clone(r.Start),
	}
	t.details.Recipe = r.Digest()
	for _, k := range r.Warm {
		t.details.Warm = append(t.details.Warm, arenero.WarmKernel(k))
	}
	return s.seal(ctx, w, t, p)
}

// minRoom is the free space without which a build is not even begun.
const minRoom = 64 << 20

// room checks that size bytes are free.
func (s *Store) room(size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < size {
		return arenero.Errorf(arenero.Exhausted, "check free space", "", "disk full: %d MiB are free and %d MiB are needed",
			free>>20, (size+1<<20-1)>>20).WithHint("free some space where the data lives, or choose another place with --data")
	}
	return nil
}

// install adds to the base system everything that is not an apt package.
func (r *Recipe) install(ctx context.Context, c *chroot, p Progress) error {
	if len(r.Pip) > 0 {
		p.step("install pip packages", 0, 0)
		argv := []string{"/usr/bin/python3", "-m", "pip", "install", "--no-cache-dir", "--no-compile", "--break-system-packages", "--progress-bar=off"}
		if err := c.run(ctx, append(append(argv, "--"), r.Pip...)...); err != nil {
			return err
		}
	}
	if len(r.Npm) > 0 {
		p.step("install npm packages", 0, 0)
		argv := []string{"/usr/bin/npm", "install", "--global", "--cache", hostDir + "/npm", "--prefix", "/usr/local", "--loglevel=error"}
		if err := c.run(ctx, append(append(argv, "--"), r.Npm...)...); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(c.path)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range r.Files {
		mode := uint64(0o644)
		if f.Mode != "" {
			if mode, err = strconv.ParseUint(f.Mode, 8, 32); err != nil {
				return err
			}
		}
		data := f.data
		if f.Source == "" {
			data = []byte(f.Content)
		}
		if err := replaceFile(root, f.Path[1:], data, fs.FileMode(mode)); err != nil {
			return err
		}
	}
	for i, argv := range r.Run {
		p.step("run "+clean(path.Base(argv[0]), 1), int64(i), int64(len(r.Run)))
		if err := c.run(ctx, argv...); err != nil {
			return err
		}
	}
	p.step("compile python", 0, 0)
	if err := r.compile(ctx, c, root); err != nil {
		return err
	}
	return r.tidy(root)
}

// compile writes the byte code of what pip installed: it cannot be written later
// on a read-only root. The code is not tied to the time of its source, which
// becomes epoch. Debian's packages bring their own.
func (r *Recipe) compile(ctx context.Context, c *chroot, root *os.Root) error {
	dirs, err := fs.Glob(root.FS(), "usr/local/lib/python3*/dist-packages")
	if err != nil || len(dirs) == 0 {
		return err
	}
	argv := []string{"/usr/bin/python3", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"}
	for _, d := range dirs {
		argv = append(argv, "/"+d)
	}
	// A package may hold files that are no Python of this version: its status
	// says so, and nothing is wrong.
	err = c.run(ctx, argv...)
	if arenero.CodeOf(err) == arenero.Unavailable {
		return nil
	}
	return err
}

// tidy removes what differs from build to build and what nobody needs.
func (r *Recipe) tidy(root *os.Root) error {
	for _, name := range []string{
		"var/cache/apt", "var/lib/apt/lists", "var/log", "var/cache/ldconfig", "var/cache/debconf", "var/cache/fontconfig",
		"root/.cache", "root/.npm", "root/.local", "etc/.pwd.lock", "var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend",
		"var/lib/systemd", "etc/apt/sources.list.d/0000mmdebstrap.list", "usr/share/nodejs/npm/docs",
		"var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-",
	} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	for _, dir := range []string{"var/log", "var/cache/apt", "var/lib/apt/lists"} {
		if err := ensureDir(root, dir); err != nil {
			return err
		}
	}
	// The day of the last change of a password is today in a fresh system.
	data, err := readFile(root, "etc/shadow", 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return replaceFile(root, path.Join("etc", "shadow"), undated(data), 0o640)
}
