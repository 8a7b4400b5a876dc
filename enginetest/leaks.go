// Package enginetest proves engines: one conformance suite for all of them with
// the checks that nothing is left behind, and an engine without isolation for the
// tests of what stands above.
package enginetest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
	"time"
)

// A census counts what a box may leave on a machine.
type census struct {
	processes map[string]bool // those that carry a box's name
	mounts    map[string]bool
	groups    map[string]bool
	fds       int
	routines  int
}

func take() census {
	c := census{processes: map[string]bool{}, mounts: map[string]bool{}, groups: map[string]bool{}}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range procs {
		raw, err := os.ReadFile(file)
		if err != nil || len(raw) == 0 {
			continue
		}
		name := string(raw)
		if strings.HasPrefix(name, "runsc") || strings.Contains(name, "/.arenero/guest") {
			c.processes[filepath.Base(filepath.Dir(file))+" "+strings.ReplaceAll(name[:min(len(name), 80)], "\x00", " ")] = true
		}
	}
	raw, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.SplitSeq(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 {
			c.mounts[f[1]] = true
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/arenero/*/*", "/sys/fs/cgroup/*/arenero/*/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, d := range dirs {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				c.groups[d] = true
			}
		}
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	c.fds = len(fds)
	c.routines = runtime.NumGoroutine()
	return c
}

// CheckLeaks compares the machine before and after a test: processes, mounts,
// cgroups, file descriptors and goroutines. Call it first in a test that does not
// run beside others; it checks when the test's other clean-ups are done.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := take()
	t.Cleanup(func() {
		var leaks []string
		// What was just told to end may take a moment to be gone.
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			leaks = before.missingFrom(take())
			if len(leaks) == 0 {
				return
			}
			if time.Now().After(deadline) {
				break
			}
		}
		buf := make([]byte, 64<<10)
		t.Errorf("left behind:\n  %s\n%s", strings.Join(leaks, "\n  "), buf[:runtime.Stack(buf, true)])
	})
}

func (before census) missingFrom(after census) []string {
	var leaks []string
	for _, kind := range []struct {
		name      string
		then, now map[string]bool
	}{{"process", before.processes, after.processes}, {"mount", before.mounts, after.mounts}, {"cgroup", before.groups, after.groups}} {
		for what := range kind.now {
			if !kind.then[what] {
				leaks = append(leaks, kind.name+" "+what)
			}
		}
	}
	sort.Strings(leaks)
	if after.fds > before.fds+1 { // one for the poller, which may have started since
		leaks = append(leaks, fmt.Sprintf("%d descriptors, %d before", after.fds, before.fds))
	}
	if after.routines > before.routines {
		leaks = append(leaks, fmt.Sprintf("%d goroutines, %d before", after.routines, before.routines))
	}
	return leaks
}
