package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/donation"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/arenero/arenero"
)

// A box that sees folders of this machine has a second process, the gofer: the
// Sentry can open no file and asks it to. It is gVisor's own, started as gVisor
// starts it: in namespaces of its own, with a root that holds the box's mounts
// and nothing else, six capabilities and a list of system calls. A folder that
// the box may not write is mounted read-only there.
//
// It lives in the box's cgroup and ends when the Sentry's ends of its sockets
// close, whoever of the two is killed first and whether or not a daemon is there
// to see it.

// maxMounts bounds the descriptors of a box.
const maxMounts = 16

// mountName is what the specification calls a mount's folder. As the images', it
// is the same wherever the folder lies.
func mountName(n int) string { return "/volume/" + strconv.Itoa(n) }

func checkMounts(b arenero.Box) error {
	const op = "create box"
	if len(b.Mounts) > maxMounts {
		return arenero.Errorf(arenero.Invalid, op, b.ID, "%d mounts, at most %d", len(b.Mounts), maxMounts)
	}
	for _, m := range b.Mounts {
		if !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
			return arenero.Errorf(arenero.Invalid, op, b.ID, "mount %.200q at %.200q: both must be absolute and clean", m.Source, m.Target)
		}
		if st, err := os.Stat(m.Source); err != nil || !st.IsDir() {
			return arenero.Errorf(arenero.Unavailable, op, b.ID, "mount %.200q: it is no folder here", m.Source)
		}
	}
	return nil
}

// mountRule puts the box's mounts into its specification.
func mountRule(s *specs.Spec, b arenero.Box) error {
	// gVisor makes no mount points in a layer over a root that is read-only. It is
	// the agent that makes it so, before any other code runs.
	s.Root.Readonly = len(b.Mounts) == 0
	for n, m := range b.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Type: "bind", Source: mountName(n), Destination: m.Target, Options: []string{"bind", access, "nosuid", "nodev"},
		})
	}
	return nil
}

// mountConfs says what is behind the root, the agent and each mount. A target that
// the image lacks is made in a small layer over the root.
func mountConfs(b arenero.Box) specutils.GoferMountConfFlags {
	root := specutils.GoferMountConf{Lower: specutils.Erofs, Upper: specutils.NoOverlay}
	agent := root
	if len(b.Mounts) > 0 {
		root.Upper, root.Size = specutils.MemoryOverlay, "1m"
	}
	confs := specutils.GoferMountConfFlags{root, agent}
	for range b.Mounts {
		confs = append(confs, specutils.GoferMountConf{Lower: specutils.Lisafs, Upper: specutils.NoOverlay})
	}
	return confs
}

// gofer starts the process that serves the mounts, and returns the Sentry's ends
// of the sockets to it, one for each mount.
func (i *Instance) gofer(p plan, b arenero.Box, guest *guestEnd) (ends []*os.File, err error) {
	var gifts donation.Agency
	defer gifts.Close()
	defer func() {
		if err != nil {
			closeAll(ends)
			ends = nil
		}
	}()
	specFile, err := i.goferSpec(p.spec, b)
	if err != nil {
		return nil, err
	}
	gifts.DonateAndClose("spec-fd", specFile)
	for range b.Mounts {
		here, there, err := socketPair()
		if err != nil {
			return ends, err
		}
		ends = append(ends, here)
		gifts.DonateAndClose("io-fds", there)
	}
	// The list of mounts it resolved: the Sentry keeps to its own specification.
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return ends, err
	}
	gifts.DonateAndClose("mounts-fd", null)
	// On it, it would ask to open what it may not open itself. There is nothing.
	nobody, rpc, err := socketPair()
	if err != nil {
		return ends, err
	}
	defer nobody.Close()
	gifts.DonateAndClose("rpc-fd", rpc)
	// It waits until it is in the box's cgroup.
	ready, wait, err := socketPair()
	if err != nil {
		return ends, err
	}
	defer ready.Close()
	gifts.DonateAndClose("sync-chroot-fd", wait)

	confs := mountConfs(b)
	cmd := exec.Command(specutils.ExePath, p.conf.ToFlags()...) //nolint:noctx // it outlives the call
	cmd.Args[0] = "runsc-gofer"
	cmd.Args = append(cmd.Args, "gofer", "--bundle", i.dir, "--gofer-mount-confs="+confs.String())
	gifts.Transfer(cmd, 3)
	cmd.Args = append(cmd.Args, b.ID)
	cmd.Env = []string{}
	cmd.Stderr = guest.log
	cmd.SysProcAttr = &unix.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
	}
	if err := cmd.Start(); err != nil {
		return ends, fmt.Errorf("start gofer: %w", err)
	}
	i.goferEnded = make(chan struct{})
	go func() { // joined by Destroy
		defer close(i.goferEnded)
		_ = cmd.Wait() // why it ended is in its log; that it did is all that counts
		i.bereft()
	}()
	if err := i.group.add(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill() // the first error says more
		return ends, err
	}
	return ends, nil
}

// bereft ends a box whose gofer is gone: it would run on without its files. As a
// rule the Sentry has ended before.
func (i *Instance) bereft() {
	i.mu.Lock()
	rec := i.rec
	i.mu.Unlock()
	if rec.PID == 0 {
		return // its start fails by itself
	}
	for _, pid := range i.sentries(rec) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// goferSpec writes the specification as the gofer needs it, with the folders of
// this machine, and opens it.
func (i *Instance) goferSpec(s *specs.Spec, b arenero.Box) (*os.File, error) {
	mine := *s
	mine.Mounts = slices.Clone(s.Mounts)
	for k, m := range mine.Mounts {
		for n := range b.Mounts {
			if m.Type == "bind" && m.Source == mountName(n) {
				mine.Mounts[k].Source = b.Mounts[n].Source
			}
		}
	}
	raw, err := json.Marshal(&mine)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(i.dir, "gofer.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return nil, err
	}
	return os.Open(path)
}

func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // they were never used
	}
}
