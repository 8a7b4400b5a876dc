package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/arenero/arenero"
)

// keyring is where Debian, Ubuntu and Fedora put the keys of the archive.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// trimmed are the parts of packages that no program needs.
var trimmed = []string{
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*",
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*",
	"path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/bug/*",
	"path-exclude=/usr/share/unicode/*",
}

// debootstrap makes the base system of a recipe in the folder root, with all its
// apt packages.
func debootstrap(ctx context.Context, r *Recipe, w *workdir, root string, p Progress) error {
	const op = "build image"
	if os.Geteuid() != 0 {
		return arenero.Errorf(arenero.Denied, op, r.Name, "only root can unpack a system").
			WithHint("run as root, or: arenero image pull")
	}
	bin, err := lookTool("mmdebstrap")
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, op, r.Name, "mmdebstrap is not installed").
			WithHint("apt-get install mmdebstrap (Fedora: dnf install mmdebstrap), or: arenero image pull")
	}
	if _, err := os.Stat(keyring); err != nil {
		return arenero.Errorf(arenero.Unavailable, op, r.Name, "the keys of the Debian archive are not installed").
			WithHint("apt-get install debian-archive-keyring (Fedora: dnf install debian-keyring)")
	}
	tmp := filepath.Join(w.path, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	argv := []string{bin, "--mode=root", "--variant=minbase", "--format=directory",
		"--keyring=" + keyring,
		"--components=" + strings.Join(r.Debian.Components, ","),
		`--aptopt=APT::Install-Recommends "false"`,
	}
	for _, o := range trimmed {
		argv = append(argv, "--dpkgopt="+o)
	}
	for _, o := range aptProxies(ctx) {
		argv = append(argv, "--aptopt="+o)
	}
	if include := r.packages(); len(include) > 0 {
		argv = append(argv, "--include="+strings.Join(include, ","))
	}
	argv = append(argv, r.Debian.Suite, root)
	argv = append(argv, r.mirrors(ctx)...)

	var stage int64
	t := &tool{argv: argv, env: toolEnv("TMPDIR=" + tmp), hold: w.lock.f, caps: true}
	p.step("start mmdebstrap", 0, stages)
	t.line = func(s string) {
		if s, ok := strings.CutPrefix(s, "I: "); ok && !strings.HasPrefix(s, "chroot arch") && !strings.HasPrefix(s, "main()") {
			p.step(clean(s, 1), min(stage, stages), stages)
			stage++
		}
	}
	out, err := t.run(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case isDiskFull(out):
		return diskFull(op, r.Name)
	}
	e := arenero.Errorf(arenero.Unavailable, op, r.Name, "mmdebstrap: %w\n%s", err, clean(out, 12))
	if strings.Contains(out, "Unable to locate package") {
		e.Code = arenero.Invalid
		return e.WithHint("a package of the recipe is not in suite %s, components %s", r.Debian.Suite, strings.Join(r.Debian.Components, " "))
	}
	return e.WithHint("check that this machine reaches the Debian mirror, or: arenero image pull")
}

// stages is about how many lines of progress mmdebstrap prints.
const stages = 8

func diskFull(op, id string) error {
	return arenero.Errorf(arenero.Exhausted, op, id, "disk full").
		WithHint("free some space where the data lives, or choose another place with --data")
}

// packages are the apt packages of the recipe and those its other parts need.
func (r *Recipe) packages() []string {
	all := slices.Clone(r.Apt)
	if len(r.Pip) > 0 {
		all = append(all, "python3", "python3-pip", "ca-certificates")
	}
	if len(r.Npm) > 0 {
		all = append(all, "nodejs", "npm", "ca-certificates")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mirrors returns the lines of a sources.list: the recipe's mirror, else what
// apt of this machine has for the suite (so a mirror configured there is used),
// else none, and mmdebstrap takes deb.debian.org.
func (r *Recipe) mirrors(ctx context.Context) []string {
	if r.Debian.Mirror != "" {
		return []string{"deb " + r.Debian.Mirror + " " + r.Debian.Suite + " " + strings.Join(r.Debian.Components, " ")}
	}
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format",
		"$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(ARCHITECTURE)", "Created-By: Packages").Output()
	if err != nil {
		return nil
	}
	var lines []string
	base := false
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 5 || f[3] != "Debian" || !mirrorRE.MatchString(f[0]) || f[4] != debianArch() {
			continue
		}
		suite, ok := strings.CutPrefix(f[1], r.Debian.Suite)
		if !ok || !slices.Contains([]string{"", "-updates", "-security"}, suite) || !slices.Contains(r.Debian.Components, f[2]) {
			continue
		}
		base = base || suite == ""
		lines = append(lines, "deb "+f[0]+" "+f[1]+" "+f[2])
	}
	if !base {
		return nil
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// debianArch is Debian's name of the architecture we run on.
func debianArch() string {
	if runtime.GOARCH == "arm" {
		return "armhf"
	}
	return runtime.GOARCH
}

// aptProxies passes on how apt of this machine reaches the network.
func aptProxies(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil
	}
	var opts []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		for _, key := range []string{"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::https::CaInfo"} {
			if strings.HasPrefix(line, key+" ") && !strings.HasSuffix(line, `""`) {
				opts = append(opts, line)
			}
		}
	}
	return opts
}

// toolEnv is the environment of a tool of the host: where programs are, how the
// network is reached, and nothing else.
func toolEnv(extra ...string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"}
	for _, key := range proxyVars {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return append(env, extra...)
}

var proxyVars = []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"}

// isExit reports whether err is a tool that ended with a status.
func isExit(err error) bool {
	var e *exec.ExitError
	return errors.As(err, &e)
}
