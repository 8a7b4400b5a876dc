package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// A held mount is one the engine made, kept in hand while the agent mounts its
// places: a place above it hides it.
type heldMount struct {
	path string
	dir  *os.File
}

// holdMounts opens the mounts of the engine. A root that was open, so that the
// engine could make what it mounts at, is closed.
func (a *Agent) holdMounts() (held []heldMount, err error) {
	if len(a.cfg.Mounts) > 0 {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return nil, fmt.Errorf("make root read-only: %w", err)
		}
	}
	for _, path := range a.cfg.Mounts {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			dropMounts(held)
			return nil, fmt.Errorf("mount at %s: %w", path, err)
		}
		held = append(held, heldMount{path, os.NewFile(uintptr(fd), path)})
	}
	return held, nil
}

func dropMounts(held []heldMount) {
	for _, m := range held {
		_ = m.dir.Close()
	}
}

// showMounts brings those back to light that a place has hidden. No user code has
// run yet, so that what stands in the way is the image's.
func (a *Agent) showMounts(held []heldMount, next identity) error {
	for _, m := range held {
		if m.seen() {
			continue
		}
		if err := makeFolders(m.path, next.places(), next.user.User); err != nil {
			return fmt.Errorf("mount at %s: %w", m.path, err)
		}
		from := "/proc/self/fd/" + strconv.Itoa(int(m.dir.Fd()))
		if err := unix.Mount(from, m.path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount at %s: %w", m.path, err)
		}
	}
	return nil
}

// seen reports whether it is what one finds under its path.
func (m heldMount) seen() bool {
	there, err := os.Stat(m.path)
	if err != nil {
		return false
	}
	mine, err := m.dir.Stat()
	return err == nil && os.SameFile(there, mine)
}

// makeFolders makes what is missing of a path. It belongs to the user, and so does
// what the engine made of it in order to mount there.
func makeFolders(path string, places []place, u arenero.User) error {
	for _, p := range parents(path, places) {
		if err := os.Mkdir(p, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Lchown(p, int(u.UID), int(u.GID)); err != nil {
			return err
		}
	}
	return nil
}

// parents lists the folders of a path that lie in a place, the path itself last.
func parents(path string, places []place) []string {
	for _, pl := range places {
		rest, ok := strings.CutPrefix(path, pl.path+"/")
		if !ok {
			continue
		}
		var all []string
		parts := strings.Split(rest, "/")
		for i := range parts {
			all = append(all, pl.path+"/"+strings.Join(parts[:i+1], "/"))
		}
		return all
	}
	return nil
}

// mountedAt reports whether the engine mounted something at a path.
func (a *Agent) mountedAt(path string) bool { return slices.Contains(a.cfg.Mounts, path) }
