package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// hostDir is where a build finds, inside the tree, the few files of the host
// that it needs: certificates, the configuration of pip and npm. It lies in a
// tmpfs that ends with the build.
const hostDir = "/run/host"

// A chroot runs installers in a tree under construction. They are code of
// packages that nobody reviewed: they see the tree and the network, have the
// capabilities of an installer and not those of root, and a PID namespace.
type chroot struct {
	path string
	work *workdir
}

// run runs one command in the tree.
func (c *chroot) run(ctx context.Context, argv ...string) error {
	const op = "run installer"
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + hostDir + "/home", "TMPDIR=/tmp",
		"LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "PYTHONHASHSEED=0", "PIP_ROOT_USER_ACTION=ignore",
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "NPM_CONFIG_UPDATE_NOTIFIER=false", "NPM_CONFIG_FUND=false", "NPM_CONFIG_AUDIT=false",
	}
	host, binds := hostSettings()
	env = append(env, host...)
	placed, err := c.placeholders()
	if err != nil {
		return err
	}
	if !strings.Contains(argv[0], "/") {
		argv = append([]string{"/usr/bin/env"}, argv...) // looks in the PATH of the tree
	}
	t := &tool{
		argv: argv, env: env, root: c.path, hold: c.work.lock.f,
		prep: func() error { return c.mounts(binds) },
	}
	out, err := t.run(ctx)
	placed()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case isDiskFull(out):
		return diskFull(op, "")
	case !isExit(err):
		return err
	}
	return arenero.Errorf(arenero.Unavailable, op, "", "%s: %w\n%s", clean(strings.Join(argv[:min(2, len(argv))], " "), 1), err, clean(out, 12))
}

// certificates are mounted over those of the tree while a command runs, since a
// host may trust more than Debian does.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// placeholders makes the files that mounts go over; undo removes what it made.
func (c *chroot) placeholders() (undo func(), err error) {
	root, err := os.OpenRoot(c.path)
	if err != nil {
		return nil, err
	}
	var made []string
	for _, name := range []string{"etc/resolv.conf", certificates[1:]} {
		info, err := root.Lstat(name)
		if err == nil && info.Mode().IsRegular() {
			continue
		}
		if err == nil {
			_ = root.Remove(name)
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			root.Close()
			return nil, err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			root.Close()
			return nil, err
		}
		_ = f.Close()
		made = append(made, name)
	}
	return func() {
		for _, name := range made {
			_ = root.Remove(name)
		}
		_ = root.Close()
	}, nil
}

// mounts furnishes the tree, in the mount namespace of the command.
func (c *chroot) mounts(binds map[string]string) error {
	in := func(p string) string { return filepath.Join(c.path, p) }
	for _, dir := range []string{"/dev", "/run"} {
		if err := unix.Mount("tmpfs", in(dir), "tmpfs", unix.MS_NOSUID, "mode=755,size=16m"); err != nil {
			return &os.PathError{Op: "mount", Path: dir, Err: err}
		}
	}
	for _, dev := range []string{"null", "zero", "full", "random", "urandom"} {
		f, err := os.Create(in("/dev/" + dev))
		if err != nil {
			return err
		}
		_ = f.Close()
		if err := unix.Mount("/dev/"+dev, in("/dev/"+dev), "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind", Path: dev, Err: err}
		}
	}
	// Read-only: root without capabilities still owns /proc/sys.
	if err := bind("/proc", in("/proc")); err != nil {
		return err
	}
	if err := os.MkdirAll(in(hostDir+"/home"), 0o700); err != nil {
		return err
	}
	for from, to := range binds {
		if err := os.MkdirAll(filepath.Dir(in(to)), 0o700); err != nil {
			return err
		}
		if err := copyFile(from, in(to)); err != nil {
			return err
		}
	}
	for _, file := range []string{"/etc/resolv.conf", certificates} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bind(file, in(file)); err != nil {
			return err
		}
	}
	return nil
}

// hostSettings collects how pip and npm of this machine reach their registries:
// variables, and the files they name, which are copied to below hostDir.
func hostSettings() (env []string, files map[string]string) {
	files = map[string]string{}
	take := func(path string) (inside string, ok bool) {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > 4<<20 {
			return "", false
		}
		inside = hostDir + filepath.Clean(path)
		files[path] = inside
		return inside, true
	}
	set := map[string]bool{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		up := strings.ToUpper(k)
		if !strings.HasPrefix(up, "PIP_") && !strings.HasPrefix(up, "NPM_CONFIG_") &&
			up != "SSL_CERT_FILE" && up != "REQUESTS_CA_BUNDLE" && up != "NODE_EXTRA_CA_CERTS" {
			continue
		}
		if filepath.IsAbs(v) {
			inside, ok := take(v)
			if !ok {
				continue // names a folder or nothing at all
			}
			v = inside
		}
		set[up] = true
		env = append(env, k+"="+v)
	}
	home, _ := os.UserHomeDir()
	first := func(key string, paths ...string) {
		for _, p := range paths {
			if set[key] {
				return
			}
			if inside, ok := take(p); ok {
				env, set[key] = append(env, key+"="+inside), true
			}
		}
	}
	first("PIP_CONFIG_FILE", filepath.Join(home, ".config/pip/pip.conf"), filepath.Join(home, ".pip/pip.conf"), "/etc/pip.conf")
	first("NPM_CONFIG_USERCONFIG", filepath.Join(home, ".npmrc"))
	first("NPM_CONFIG_GLOBALCONFIG", "/usr/etc/npmrc", "/etc/npmrc", "/usr/local/etc/npmrc")
	for _, key := range proxyVars {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env, files
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
