package agent

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The guard ends the largest process when user code holds more memory than the
// sandbox may. Without it the host's OOM killer would end the whole sandbox:
// gVisor knows no killer of its own. RLIMIT_AS is no substitute: it counts
// addresses, of which node and java reserve many gigabytes and use few.
//
// It looks only while something runs, and the more often the less room is left: an
// allocation of maxRate, from the last look on, must not get past the limit by more
// than the slack the engine puts on top of it.
type guard struct {
	a    *Agent
	work chan struct{} // something was started

	mu        sync.Mutex
	fullDisk  time.Time // when the disk was last seen full
	fullTasks time.Time // when the process table was last seen full
	active    int       // cells that run
}

const (
	maxRate  = 2 << 30 // bytes per second: as fast as gVisor hands out pages
	minPause = 5 * time.Millisecond
	maxPause = 400 * time.Millisecond
	idle     = time.Second // between looks when only idle kernels are there
)

func newGuard(a *Agent) *guard {
	if a.cfg.Meter == nil {
		a.cfg.Meter = a.addUp
		if a.cfg.Init && !a.cfg.SumMemory {
			a.cfg.Meter = a.boxMemory
		}
	}
	return &guard{a: a, work: make(chan struct{}, 1)}
}

// poke says that something was started.
func (g *guard) poke() {
	select {
	case g.work <- struct{}{}:
	default:
	}
}

func (g *guard) run(ctx context.Context) {
	pause := time.Duration(0) // 0: until poked
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if pause > 0 {
			timer.Reset(pause)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-g.work:
		case <-timer.C:
		}
		pause = g.look()
	}
}

// look does one round and says when the next is due.
func (g *guard) look() time.Duration {
	processes, kernels := g.a.running()
	if processes+kernels == 0 {
		return 0
	}
	id := g.a.identity()
	if diskFull(id.disk()) {
		g.mu.Lock()
		g.fullDisk = time.Now()
		g.mu.Unlock()
	}
	limit := id.limits.Memory
	if limit <= 0 {
		return idle
	}
	used, err := g.a.cfg.Meter()
	if err != nil {
		g.a.log.Warn("memory cannot be measured", "err", err)
		return idle
	}
	if used > limit {
		g.endLargest(used, limit)
		return minPause
	}
	g.mu.Lock()
	calm := processes == 0 && g.active == 0
	g.mu.Unlock()
	pause := time.Duration(float64(limit-used) / maxRate * float64(time.Second))
	if calm {
		return max(minPause, min(4*pause, idle))
	}
	return max(minPause, min(pause, maxPause))
}

// endLargest kills the process that holds the most.
func (g *guard) endLargest(used, limit int64) {
	var victim task
	for _, t := range g.a.tasks() {
		if !t.zombie && t.resident > victim.resident && (g.a.owner(t) != nil || g.a.cfg.Init) {
			victim = t
		}
	}
	if victim.pid == 0 {
		return
	}
	if p := g.a.owner(victim); p != nil {
		p.outOfMemory.Store(true) // before its death can be seen
	}
	_ = unix.Kill(victim.pid, unix.SIGKILL)
	g.a.log.Info("ended the largest process", "pid", victim.pid, "resident", victim.resident, "used", used, "limit", limit)
	// Its pages go back a moment after its death; the next largest is innocent.
	for range 100 {
		if _, ok := g.a.task(victim.pid, make([]byte, 8<<10)); !ok {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// running counts what the agent started.
func (a *Agent) running() (processes, kernels int) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	for _, p := range a.procs {
		if p.kernel {
			kernels++
		} else {
			processes++
		}
	}
	return processes, kernels
}

// owner is the program a task belongs to; nil when it is none of ours.
func (a *Agent) owner(t task) *process {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	for _, p := range a.procs {
		if p.pid == t.pid || t.mark != 0 && p.mark == t.mark {
			return p
		}
	}
	return nil
}

// boxMemory measures as PID 1: all anonymous memory of the box, shared memory
// included, without what is on the disk, which has a limit of its own. The files
// of the image are not counted: they are the host's, shared by all.
func (a *Agent) boxMemory() (int64, error) {
	b, err := os.ReadFile(a.cfg.Proc + "/meminfo")
	if err != nil {
		return 0, err
	}
	used := parseMeminfo(b)
	if disk := a.identity().disk(); disk != "" {
		var st unix.Statfs_t
		if unix.Statfs(disk, &st) == nil {
			used -= int64(st.Blocks-st.Bfree) * st.Bsize
		}
	}
	return max(used, 0), nil
}

// parseMeminfo adds up what is anonymous. Linux and gVisor both count tmpfs there.
func parseMeminfo(b []byte) int64 {
	var total int64
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		switch string(key) {
		case "Active(anon)", "Inactive(anon)":
			if f := bytes.Fields(value); len(f) > 0 {
				n, err := strconv.ParseInt(string(f[0]), 10, 50)
				if err == nil && n > 0 {
					total += n << 10
				}
			}
		}
	}
	return total
}

// addUp measures natively: the resident memory of everything we started.
func (a *Agent) addUp() (int64, error) {
	var total int64
	for _, t := range a.tasks() {
		if a.owner(t) != nil {
			total += t.resident
		}
	}
	return total, nil
}

// countTasks counts the processes and threads of the sandbox's user.
func (g *guard) countTasks() int {
	id, n := g.a.identity(), 0
	for _, t := range g.a.tasks() {
		if t.uid == id.user.UID && (g.a.cfg.Init || t.mark != 0) {
			n += max(t.threads, 1)
		}
	}
	return n
}

func (g *guard) sawTasks(n int) {
	limit := g.a.identity().limits.Processes
	if limit > 0 && n >= limit-limit/8-1 {
		g.mu.Lock()
		g.fullTasks = time.Now()
		g.mu.Unlock()
	}
}

// diskFull reports whether next to nothing can be written any more.
func diskFull(disk string) bool {
	var st unix.Statfs_t
	if disk == "" || unix.Statfs(disk, &st) != nil || st.Blocks == 0 {
		return false
	}
	return st.Bavail < max(st.Blocks/256, 1) || st.Files > 0 && st.Ffree < max(st.Files/256, 1)
}

func (g *guard) diskWasFull(since time.Time) bool {
	if diskFull(g.a.identity().disk()) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fullDisk.After(since)
}

func (g *guard) tasksWereFull(since time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fullTasks.After(since)
}

// cell counts a cell that runs, until the returned function is called.
func (g *guard) cell() func() {
	g.mu.Lock()
	g.active++
	g.mu.Unlock()
	g.poke()
	return func() {
		g.mu.Lock()
		g.active--
		g.mu.Unlock()
	}
}
