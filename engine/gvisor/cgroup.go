package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// gVisor can make cgroups itself, but on version 1 it does so by moving the
// calling process, all its threads, into the box's groups and back. A daemon
// that makes several boxes at once would be charged, and killed, for its guests.
// So the engine makes the groups, and moves only the box into them.

// The controllers a box needs. Each may be on version 1 or 2; a machine in
// hybrid layout has some on either.
var controllers = []string{"memory", "cpu", "pids", "cpuacct"}

// A hierarchy is where a controller is mounted.
type hierarchy struct {
	dir string // mount point
	v2  bool
}

// hierarchies finds where each controller is mounted. A controller that is
// nowhere is absent from the map; cpuacct is part of cpu on version 2.
func hierarchies(mounts string) (map[string]hierarchy, error) {
	f, err := os.Open(mounts)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]hierarchy{}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		fields := strings.Fields(scan.Text())
		if len(fields) < 4 {
			continue
		}
		dir := fields[1]
		switch fields[2] {
		case "cgroup":
			for opt := range strings.SplitSeq(fields[3], ",") {
				if _, seen := found[opt]; !seen && known(opt) {
					found[opt] = hierarchy{dir: dir}
				}
			}
		case "cgroup2":
			raw, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
			if err != nil {
				continue
			}
			for c := range strings.FieldsSeq(string(raw)) {
				if known(c) {
					found[c] = hierarchy{dir: dir, v2: true}
				}
			}
		}
	}
	if h, ok := found["cpu"]; ok && h.v2 {
		found["cpuacct"] = h
	}
	return found, scan.Err()
}

func known(controller string) bool {
	return slices.Contains(controllers, controller)
}

// A group is the cgroups of one box: one directory per controller. On version 2,
// and where version 1 controllers are mounted together, several controllers
// share a directory.
type group struct {
	name  string               // relative to each mount: "arenero/box-1"
	at    map[string]hierarchy // by controller
	extra int64                // memory beyond what the limits say
}

func newGroup(parent, id string, at map[string]hierarchy) *group {
	return &group{name: filepath.Join(parent, id), at: at}
}

func (g *group) dir(controller string) string {
	return filepath.Join(g.at[controller].dir, g.name)
}

// dirs lists each directory of the group once.
func (g *group) dirs() []string {
	var dirs []string
	seen := map[string]bool{}
	for _, c := range controllers {
		h, ok := g.at[c]
		if !ok || seen[h.dir] {
			continue
		}
		seen[h.dir] = true
		dirs = append(dirs, filepath.Join(h.dir, g.name))
	}
	return dirs
}

// create makes the directories. On version 2 the parents must hand the
// controllers down first.
func (g *group) create() error {
	for c, h := range g.at {
		if !h.v2 || c == "cpuacct" {
			continue
		}
		dir := h.dir
		for part := range strings.SplitSeq(filepath.Dir(g.name), "/") {
			if err := enable(dir, c); err != nil {
				return err
			}
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if err := enable(dir, c); err != nil {
			return err
		}
	}
	for _, dir := range g.dirs() {
		// The destruction of the last box removes the parents as well, perhaps
		// just between two of these steps.
		err := os.MkdirAll(dir, 0o755)
		for try := 0; errors.Is(err, fs.ErrNotExist) && try < 10; try++ {
			err = os.MkdirAll(dir, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether any part of the group is there.
func (g *group) exists() bool {
	for _, dir := range g.dirs() {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	return false
}

func enable(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(raw)), controller) {
		return nil
	}
	if err := os.WriteFile(file, []byte("+"+controller), 0o644); err != nil {
		return fmt.Errorf("hand down controller %s: %w", controller, err)
	}
	return nil
}

// quotaPeriod is the period of the CPU quota in microseconds, the kernel's default.
const quotaPeriod = 100_000

// set writes the limits of memory and tasks. Every limit that a controller is
// missing for is an error: limits are never silently weaker.
func (g *group) set(l arenero.Limits) error {
	for _, c := range controllers {
		if _, ok := g.at[c]; !ok {
			return fmt.Errorf("cgroup controller %q is not mounted", c)
		}
	}
	memory := strconv.FormatInt(boxMemory(l)+g.extra, 10)
	tasks := strconv.Itoa(hostTasks(l))

	if g.at["memory"].v2 {
		if err := g.write("memory", "memory.max", memory); err != nil {
			return err
		}
		g.optional("memory", "memory.swap.max", "0")
		g.optional("memory", "memory.oom.group", "1")
	} else {
		// The combined limit must never be below the memory limit, so it is
		// lifted before a change and set after it.
		g.optional("memory", "memory.memsw.limit_in_bytes", "-1")
		if err := g.write("memory", "memory.limit_in_bytes", memory); err != nil {
			return err
		}
		g.optional("memory", "memory.memsw.limit_in_bytes", memory)
		g.optional("memory", "memory.swappiness", "0")
	}
	return g.write("pids", "pids.max", tasks)
}

// throttle writes the limit of CPU time. A box gets it when it is made, not
// before: until then none of its guest's new code runs, and a Sentry that loads
// its pages on all cores would soon be stopped for the rest of each period.
//
// What a box does not use it may save up for one period, so that a short burst on
// several cores, the common case of an interpreter, is not cut in two.
func (g *group) throttle(l arenero.Limits) error {
	quota := strconv.FormatInt(int64(l.CPUs*quotaPeriod), 10)
	if g.at["cpu"].v2 {
		g.optional("cpu", "cpu.max.burst", "0") // it may never exceed the quota
		if err := g.write("cpu", "cpu.max", quota+" "+strconv.Itoa(quotaPeriod)); err != nil {
			return err
		}
		g.optional("cpu", "cpu.max.burst", quota)
		return nil
	}
	g.optional("cpu", "cpu.cfs_burst_us", "0")
	if err := g.write("cpu", "cpu.cfs_period_us", strconv.Itoa(quotaPeriod)); err != nil {
		return err
	}
	if err := g.write("cpu", "cpu.cfs_quota_us", quota); err != nil {
		return err
	}
	g.optional("cpu", "cpu.cfs_burst_us", quota)
	return nil
}

func (g *group) write(controller, file, value string) error {
	path := filepath.Join(g.dir(controller), file)
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}

// optional writes a file that not every kernel has, such as the swap accounting's.
func (g *group) optional(controller, file, value string) {
	_ = g.write(controller, file, value)
}

// add moves a process with all its threads into the group.
func (g *group) add(pid int) error {
	for _, dir := range g.dirs() {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
		if err != nil {
			return fmt.Errorf("move process into %s: %w", dir, err)
		}
	}
	return nil
}

// procs lists the processes of the group.
func (g *group) procs() []int {
	var pids []int
	seen := map[int]bool{}
	for _, dir := range g.dirs() {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(raw)) {
			// pid 0 is a process of another pid namespace.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// destroy kills what is in the group and removes it, waiting until deadline for
// the kernel to let go of the dead.
func (g *group) destroy(deadline time.Time) error {
	for {
		for _, pid := range g.procs() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		var last error
		for _, dir := range g.dirs() {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				last = fmt.Errorf("remove %s: %w", dir, err)
			}
		}
		if last == nil {
			g.prune()
			return nil
		}
		if time.Now().After(deadline) {
			return last
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// prune removes the parents that have become empty.
func (g *group) prune() {
	for _, dir := range g.dirs() {
		for parent := filepath.Dir(g.name); parent != "."; parent = filepath.Dir(parent) {
			dir = filepath.Dir(dir)
			if unix.Rmdir(dir) != nil {
				break
			}
		}
	}
}

// oomKills counts how often the kernel killed something in the group for memory.
func (g *group) oomKills() int64 {
	if g.at["memory"].v2 {
		return keyed(filepath.Join(g.dir("memory"), "memory.events"), "oom_kill")
	}
	return keyed(filepath.Join(g.dir("memory"), "memory.oom_control"), "oom_kill")
}

// usage reads what the group uses now.
func (g *group) usage() arenero.Usage {
	var u arenero.Usage
	if g.at["memory"].v2 {
		u.Memory = number(filepath.Join(g.dir("memory"), "memory.current"))
		u.MaxMemory = number(filepath.Join(g.dir("memory"), "memory.peak"))
	} else {
		u.Memory = number(filepath.Join(g.dir("memory"), "memory.usage_in_bytes"))
		u.MaxMemory = number(filepath.Join(g.dir("memory"), "memory.max_usage_in_bytes"))
	}
	u.MaxMemory = max(u.MaxMemory, u.Memory)
	if g.at["cpuacct"].v2 {
		u.CPU = time.Duration(keyed(filepath.Join(g.dir("cpu"), "cpu.stat"), "usage_usec")) * time.Microsecond
	} else {
		u.CPU = time.Duration(number(filepath.Join(g.dir("cpuacct"), "cpuacct.usage")))
	}
	u.Tasks = int(number(filepath.Join(g.dir("pids"), "pids.current")))
	return u
}

func number(file string) int64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func keyed(file, key string) int64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if k, v, ok := strings.Cut(line, " "); ok && k == key {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// overhead is what the Sentry and the agent need beside the guest's own memory:
// about 45 MiB at rest, more while a guest has many files and processes open.
const overhead = 96 * arenero.MiB

// goferMemory is what the gofer needs of a box that has mounts.
const goferMemory = 48 * arenero.MiB

// inodeCost is what one file inside costs the Sentry's own memory, whatever its
// size; the agent bounds the files of a sandbox to one per inodeShare of disk.
const (
	inodeCost  = 1 * arenero.KiB
	inodeShare = 16 * arenero.KiB
)

// boxMemory is the limit on the host: the user's memory and disk, both of which
// live in memory on this engine, and what the Sentry needs beside them.
func boxMemory(l arenero.Limits) int64 {
	return l.Memory + l.Disk + overhead + l.Disk/inodeShare*inodeCost
}

// hostTasks bounds the threads on the host. Systrap takes about two for each
// process of the guest, and if it can have no more the Sentry panics and the
// sandbox is lost. The guest's own limit must therefore always be hit first.
func hostTasks(l arenero.Limits) int { return 4*l.Processes + 256 }
