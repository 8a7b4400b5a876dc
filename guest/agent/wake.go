package agent

import (
	"context"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent/jupyter"
)

// An identity is who the sandbox is. It is replaced as a whole.
type identity struct {
	awake   bool // a Wake has been
	warm    bool // it was for a snapshot
	claimed bool // one was for a user: the disk is final
	sandbox string
	env     map[string]string // the image's, and the sandbox's on top
	limits  arenero.Limits
	user    account
	workdir string
	mounted bool // the disk is ours
	seeded  bool // kernels have randomness that no other copy of the snapshot has
}

func (a *Agent) identity() identity {
	a.idMu.RLock()
	defer a.idMu.RUnlock()
	return a.id
}

func (a *Agent) setIdentity(id identity) {
	a.idMu.Lock()
	defer a.idMu.Unlock()
	a.id = id
}

// firstIdentity is what holds before a Wake.
func (a *Agent) firstIdentity() {
	id := identity{awake: !a.cfg.Init, limits: a.cfg.Limits, workdir: a.cfg.Workdir, env: parseEnv(a.cfg.Env)}
	if id.workdir == "" {
		id.workdir = "/"
	}
	if a.cfg.User != nil {
		id.user = account{User: *a.cfg.User}
	} else {
		id.user = account{User: arenero.User{Name: strconv.Itoa(int(a.uid)), UID: a.uid, GID: a.gid, Home: "/"}, groups: a.groups}
		if u, err := user.LookupId(strconv.Itoa(int(a.uid))); err == nil {
			id.user.Name, id.user.Home = u.Username, u.HomeDir
		}
	}
	a.setIdentity(id)
}

func parseEnv(list []string) map[string]string {
	env := map[string]string{}
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	return env
}

// disk is the mount whose size bounds what can be written; "" when it is not ours.
func (id identity) disk() string {
	if id.mounted {
		return diskDir
	}
	return ""
}

// path makes a path of a caller absolute: relative ones start at the work folder.
func (id identity) path(p string) string {
	switch {
	case p == "":
		return id.workdir
	case p == "~":
		return id.user.Home
	case strings.HasPrefix(p, "~/"):
		return filepath.Join(id.user.Home, p[2:])
	case !filepath.IsAbs(p):
		return id.workdir + "/" + p
	}
	return p
}

// environ is the whole environment of a process.
func (id identity) environ(u arenero.User, extra map[string]string, tty bool) []string {
	env := map[string]string{
		"PATH": defaultPath, "LANG": "C.UTF-8", "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": "/bin/sh",
	}
	if tty {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, id.env)
	if u.UID != id.user.UID { // the image speaks of the sandbox's own user
		env["HOME"], env["USER"], env["LOGNAME"] = u.Home, u.Name, u.Name
	}
	maps.Copy(env, extra)
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}

// sameDisk reports whether the disk that is mounted is the one that is wanted.
func (id identity) sameDisk(was identity) bool {
	return was.mounted && id.limits.Disk == was.limits.Disk && id.user.User == was.user.User && id.workdir == was.workdir
}

// wake gives the sandbox its identity. See [arenero.Wake].
func (a *Agent) wake(ctx context.Context, w arenero.Wake) error {
	const op = "wake sandbox"
	a.wakeMu.Lock()
	defer a.wakeMu.Unlock()
	id := a.identity()
	if err := a.checkWake(w, id); err != nil {
		return err
	}
	next := id
	next.awake, next.warm, next.sandbox = true, w.Warm, w.SandboxID
	if id.claimed { // a copy, or one that slept: what it was given stays
		next.env = maps.Clone(id.env)
	} else {
		next.env = parseEnv(a.cfg.Env)
	}
	maps.Copy(next.env, w.Env)
	if !id.claimed {
		next.limits = w.Limits
		if w.User.Name != "" {
			next.user = account{User: w.User, groups: groupsOf(w.User.Name)}
		}
		if w.Workdir != "" {
			next.workdir = filepath.Clean(w.Workdir)
		}
	}
	next.claimed = id.claimed || !w.Warm
	if w.Hostname != "" && a.cfg.Init {
		a.rename(w.Hostname)
	}
	if a.cfg.Init && !id.claimed && !next.sameDisk(id) {
		if err := a.makeDisk(next, id); err != nil {
			return arenero.Errorf(arenero.Unavailable, op, "", "make disk: %w", err)
		}
		next.mounted = true
	}
	a.setIdentity(next)
	if err := a.ownRunDir(); err != nil {
		return arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	if len(w.Entropy) > 0 && a.cfg.Init {
		// Mixed in, not credited: what is there already is not lost.
		_ = os.WriteFile("/dev/urandom", w.Entropy, 0)
	}
	// A second Wake that only warms is a rehearsal of the one that will count: it
	// touches the same memory.
	if id.awake {
		if !id.claimed && !w.Warm {
			a.relimit(next.limits)
		}
		seed := jupyter.Seed{Entropy: w.Entropy, Env: w.Env}
		if !id.claimed {
			seed.Dir = next.workdir
		}
		// Who was rehearsed and not claimed since has randomness of its own. That
		// spares the first owner a round trip to the kernel.
		if !id.seeded || id.claimed || !maps.Equal(id.env, next.env) || id.workdir != next.workdir {
			if err := a.kernels.Reseed(ctx, seed); err != nil {
				return err
			}
		}
		next.seeded = w.Warm
		a.setIdentity(next)
	}
	if next.claimed && !id.claimed && a.cfg.Init {
		if err := a.dropUntilClaim(); err != nil {
			return arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
		}
	}
	a.guard.poke()
	return nil
}

func (a *Agent) checkWake(w arenero.Wake, id identity) error {
	const op = "wake sandbox"
	bad := func(format string, args ...any) error {
		return arenero.Errorf(arenero.Invalid, op, "", format, args...)
	}
	switch {
	case id.claimed && w.Warm:
		return arenero.Errorf(arenero.Conflict, op, "", "the sandbox has been claimed")
	case len(w.Entropy) < 32 || len(w.Entropy) > 4<<10:
		return bad("%d bytes of entropy", len(w.Entropy))
	case w.Workdir != "" && !filepath.IsAbs(w.Workdir):
		return bad("the work folder %.200q is not absolute", w.Workdir)
	case a.cfg.Init && !id.claimed && w.Limits.Disk <= 0:
		return bad("no limit of the disk")
	case a.cfg.Init && !id.claimed && w.User.Name == "":
		return bad("no user")
	case a.cfg.Init && w.User.UID == a.uid:
		return bad("user code cannot run as the agent")
	case w.User.Name != "" && !filepath.IsAbs(w.User.Home):
		return bad("the home %.200q is not absolute", w.User.Home)
	}
	for k, v := range w.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return bad("%.64q cannot be in the environment", k)
		}
	}
	return nil
}

// relimit gives what is running already the limits of the claimed sandbox.
func (a *Agent) relimit(l arenero.Limits) {
	limits := a.rlimits(l)
	for _, t := range a.tasks() {
		if a.owner(t) == nil {
			continue
		}
		for _, l := range limits {
			r := unix.Rlimit{Cur: l.cur, Max: l.max}
			if err := unix.Prlimit(t.pid, l.resource, &r, nil); err != nil {
				a.log.Warn("limit cannot be set", "pid", t.pid, "resource", l.resource, "err", err)
			}
		}
	}
}

// rename gives the sandbox its host name, if it has not got it already: gVisor
// gives a restored box the name of its specification, but only if nobody inside
// ever set one. A fork of a claimed sandbox gets a new name too, so the right to
// do that is kept, and used on one thread alone.
func (a *Agent) rename(name string) {
	if now, err := os.Hostname(); err == nil && now == name {
		return
	}
	a.capsMu.Lock()
	c := a.caps
	a.capsMu.Unlock()
	done := make(chan error, 1)
	go func() { // joined below
		runtime.LockOSThread() // never unlocked: the thread ends with its rights
		c.effective |= c.permitted & (1 << unix.CAP_SYS_ADMIN)
		if err := c.setHere(); err != nil {
			done <- err
			return
		}
		done <- unix.Sethostname([]byte(name))
	}()
	if err := <-done; err != nil {
		a.log.Warn("the host name cannot be set", "err", err)
	}
}

// dropUntilClaim gives up, for good, what only mounting and limits needed. Of the
// right to mount no more is left than what rename takes up again.
func (a *Agent) dropUntilClaim() error {
	a.capsMu.Lock()
	defer a.capsMu.Unlock()
	c := a.caps
	c.effective &^= untilClaim
	c.permitted &^= untilClaim &^ (1 << unix.CAP_SYS_ADMIN)
	if err := c.setAll(); err != nil {
		return err
	}
	a.caps = c
	return nil
}

func (a *Agent) uptime() time.Duration { return time.Since(a.born) }
