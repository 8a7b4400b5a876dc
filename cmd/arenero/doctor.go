package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest"
	"github.com/arenero/arenero/host"
)

type doctorCmd struct {
	JSON bool `help:"As JSON." name:"json"`
}

// A finding is one thing that was looked at.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"` // ok, note (slower or less), bad (cannot run)
	Found string `json:"found"`
	Mend  string `json:"mend,omitempty"`
}

const (
	ok   = "ok"
	note = "note"
	bad  = "bad"
)

// Run looks at everything a sandbox needs. It changes nothing but the data
// folder. It ends with 1 when sandboxes cannot run here.
func (c *doctorCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	all := slices.Concat(checkKernel(), checkUser(), checkCgroups(), checkMemory(), checkDisk(cli.Data), checkAgent(), checkTools(), checkVolumes())
	h, err := openForRun(ctx, cli.Data)
	if err != nil {
		all = append(all, finding{"data", bad, err.Error(), arenero.HintOf(err)})
	} else {
		all = slices.Concat(all, checkEngine(ctx, h), checkImages(ctx, h))
		if err := h.close(ctx); err != nil {
			return err
		}
	}
	broken := false
	for _, f := range all {
		broken = broken || f.State == bad
	}
	if c.JSON {
		if err := printJSON(m.Stdout, all); err != nil {
			return err
		}
	} else {
		show(m, all)
	}
	if broken {
		return status(1)
	}
	return nil
}

func show(m *Main, all []finding) {
	mark := map[string]string{ok: "  ok ", note: "note ", bad: " BAD "}
	for _, f := range all {
		fmt.Fprintf(m.Stdout, "%s %-10s %s\n", mark[f.State], f.Check, printable(f.Found))
		if f.Mend != "" {
			fmt.Fprintf(m.Stdout, "                 to mend: %s\n", printable(f.Mend))
		}
	}
}

func checkKernel() []finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return []finding{{"kernel", bad, err.Error(), ""}}
	}
	release := unix.ByteSliceToString(u.Release[:])
	f := finding{"kernel", ok, "Linux " + release + " " + runtime.GOARCH, ""}
	var major, minor int
	// A release that does not parse is not a reason to refuse.
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 4 || major == 4 && minor < 14) {
		f.State, f.Mend = bad, "install Linux 4.14 or newer"
	}
	return []finding{f}
}

func checkUser() []finding {
	if os.Geteuid() == 0 {
		return []finding{{"user", ok, "root", ""}}
	}
	return []finding{{"user", bad, fmt.Sprintf("uid %d", os.Geteuid()), "run as root: sudo arenero ..."}}
}

// checkCgroups describes the layout; whether the engine can use it is the
// engine's own finding.
func checkCgroups() []finding {
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return []finding{{"cgroups", bad, err.Error(), "mount /proc"}}
	}
	var v1 []string
	v2 := ""
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 4:
		case f[2] == "cgroup2":
			v2 = f[1]
		case f[2] == "cgroup":
			v1 = append(v1, filepath.Base(f[1]))
		}
	}
	switch {
	case v2 == "" && v1 == nil:
		return []finding{{"cgroups", bad, "none mounted", "mount -t cgroup2 none /sys/fs/cgroup"}}
	case v1 == nil:
		return []finding{{"cgroups", ok, "version 2 at " + v2, ""}}
	case v2 == "":
		return []finding{{"cgroups", ok, "version 1: " + strings.Join(v1, " "), ""}}
	}
	return []finding{{"cgroups", ok, "hybrid: version 2 at " + v2 + ", version 1: " + strings.Join(v1, " "), ""}}
}

func checkMemory() []finding {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return []finding{{"memory", note, err.Error(), ""}}
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		rest, found := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			break
		}
		out := finding{"memory", ok, fmt.Sprintf("%d MiB available, %d CPUs", kib/1024, runtime.NumCPU()), ""}
		if kib*arenero.KiB < arenero.DefaultLimits().Memory {
			out.State = note
			out.Mend = "a sandbox may use 1 GiB by default: free some, or run with --memory 512M"
		}
		return []finding{out}
	}
	return []finding{{"memory", note, "/proc/meminfo does not say what is available", ""}}
}

func checkDisk(data string) []finding {
	// The folder itself may not be there yet: ask the nearest that is.
	at := data
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		return []finding{{"disk", bad, err.Error(), "choose another folder with --data"}}
	}
	free := int64(s.Bavail) * s.Bsize
	f := finding{"disk", ok, fmt.Sprintf("%d MiB free at %s", free/arenero.MiB, data), ""}
	switch {
	case free < 64*arenero.MiB:
		f.State, f.Mend = bad, "free some space, or choose another folder with --data"
	case free < 4*arenero.GiB:
		f.State, f.Mend = note, "building the image python takes about 4 GiB"
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		f.State, f.Found, f.Mend = bad, data+" cannot be written", "run as root, or choose another folder with --data"
	}
	return []finding{f}
}

func checkAgent() []finding {
	b, err := guest.Binary()
	if err != nil {
		return []finding{{"agent", bad, err.Error(), arenero.HintOf(err)}}
	}
	return []finding{{"agent", ok, fmt.Sprintf("%d KiB, in this binary", len(b)/1024), ""}}
}

func checkEngine(ctx context.Context, h *house) []finding {
	caps, err := h.engine.Probe(ctx)
	if err != nil {
		return []finding{{"engine", bad, err.Error(), arenero.HintOf(err)}}
	}
	out := []finding{{"engine", ok, fmt.Sprintf("%s, %s, CPU %s", caps.Version, caps.Platform, caps.CPU), ""}}
	if caps.Platform == "systrap" {
		if _, err := os.Stat("/dev/kvm"); err != nil {
			out = append(out, finding{"platform", note, "no /dev/kvm: systrap is used, system calls are slower", "on hardware, or with nested virtualisation, KVM is faster"})
		}
	}
	for _, d := range caps.Missing {
		out[0].State = bad
		out = append(out, finding{"engine", bad, d.What, d.Mend})
	}
	return out
}

func checkTools() []finding {
	path, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return []finding{{"tools", note, "mmdebstrap is not installed: images cannot be built from recipes here", "apt-get install mmdebstrap, or take an OCI image: arenero image pull"}}
	}
	return []finding{{"tools", ok, path, ""}}
}

// checkVolumes says what volumes lack. Whether a disk can be mounted is tried when
// one is made.
func checkVolumes() []finding {
	f := finding{"volumes", ok, "", ""}
	tool, err := host.VolumeTool()
	if err != nil {
		f.State, f.Found, f.Mend = note, "mkfs.ext4 is not installed: volumes cannot be made here", "apt-get install e2fsprogs"
		return []finding{f}
	}
	if err := unix.Access("/dev/loop-control", unix.R_OK|unix.W_OK); err != nil {
		f.State, f.Found, f.Mend = note, "no loop devices: volumes cannot be mounted here", "modprobe loop; in a container, give it /dev/loop-control and the right to mount"
		return []finding{f}
	}
	f.Found = tool + ", loop devices"
	return []finding{f}
}

func checkImages(ctx context.Context, h *house) []finding {
	all, err := h.images.List(ctx)
	if err != nil {
		return []finding{{"images", bad, err.Error(), arenero.HintOf(err)}}
	}
	if len(all) == 0 {
		return []finding{{"images", note, "none yet", "arenero image build python"}}
	}
	var out []finding
	for _, i := range all {
		f := finding{"images", ok, fmt.Sprintf("%s, %d MiB", i.Name, i.Size/arenero.MiB), ""}
		if len(i.Warm) > 0 {
			f = warmth(ctx, h, i, f)
		}
		out = append(out, f)
	}
	return out
}

// warmth says whether sandboxes of an image start with their libraries loaded.
func warmth(ctx context.Context, h *house, img arenero.Image, f finding) finding {
	dir, why := h.host.Warmth(ctx, img)
	if dir != "" {
		f.Found += ", warm"
		return f
	}
	f.State, f.Found = note, f.Found+": "+why
	f.Mend = "arenero image warm " + img.Name
	return f
}
