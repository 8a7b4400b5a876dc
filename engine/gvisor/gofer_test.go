package gvisor_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/enginetest"
)

// gofers lists the gofers of a box.
func gofers(id string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err == nil && strings.HasPrefix(string(raw), "runsc-gofer\x00") && strings.HasSuffix(string(raw), "\x00"+id+"\x00") {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func proc(t *testing.T, pid int, file string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func withMounts(t *testing.T, id string) (arenero.Instance, int) {
	t.Helper()
	enginetest.CheckLeaks(t)
	dir, ro, rw := t.TempDir(), t.TempDir(), t.TempDir()
	e := gvisor.New(gvisor.Config{Dir: dir, Agent: enginetest.Agent(t)})
	box := arenero.Box{
		ID: id, RootFS: enginetest.Busybox(t), Hostname: id, Limits: arenero.Limits{}.WithDefaults(),
		Mounts: []arenero.Mount{{Source: ro, Target: "/ro", ReadOnly: true}, {Source: rw, Target: "/rw"}},
	}
	i, err := e.Create(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	pids := gofers(id)
	if len(pids) != 1 {
		t.Fatalf("gofers %v", pids)
	}
	return i, pids[0]
}

// What a gofer that was taken over could reach: the box's folders, one of them
// read-only, and nothing else of the machine.
func TestGoferIsConfined(t *testing.T) {
	_, pid := withMounts(t, "confined")
	var seen []string
	for line := range strings.Lines(proc(t, pid, "mountinfo")) {
		f := strings.Fields(line)
		seen = append(seen, f[4]+" "+strings.Split(f[5], ",")[0])
	}
	slices.Sort(seen)
	if want := []string{"/ro ro", "/rw rw"}; !slices.Equal(seen, want) {
		t.Errorf("it sees %v, want %v", seen, want)
	}
	if entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "root")); err != nil || len(entries) != 2 {
		t.Errorf("its root holds %v, %v", entries, err)
	}
	status := proc(t, pid, "status")
	// chown, dac_override, dac_read_search, fowner, fsetid, sys_chroot
	for _, want := range []string{"Seccomp:\t2\n", "CapPrm:\t000000000004001f\n", "CapBnd:\t000000000004001f\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in its status:\n%s", want, status)
		}
	}
	for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts"} {
		mine, err1 := os.Readlink("/proc/self/ns/" + ns)
		its, err2 := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + ns)
		if err1 != nil || err2 != nil || mine == its {
			t.Errorf("it shares the namespace %s: %s %s %v %v", ns, mine, its, err1, err2)
		}
	}
	if groups := proc(t, pid, "cgroup"); strings.Count(groups, "/arenero/") < 3 {
		t.Errorf("it is not in the box's groups:\n%s", groups)
	}
}

// A box and its gofer end together, whichever goes first.
func TestGoferAndBoxEndTogether(t *testing.T) {
	i, pid := withMounts(t, "together")
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if x, err := i.Wait(ctx); err != nil || x.Destroyed {
		t.Errorf("the box after its gofer: %+v %v", x, err)
	}

	j, pid := withMounts(t, "other-way")
	sentry, err := strconv.Atoi(strings.Fields(proc(t, pid, "stat"))[3]) // our own child, as the gofer
	if err != nil || sentry != os.Getpid() {
		t.Fatalf("the gofer's parent is %d, %v", sentry, err)
	}
	if err := unix.Kill(sentryOf(t, "other-way"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(gofers("other-way")) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the gofer outlives its box")
		}
	}
}

func children(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil {
			all.Write(raw)
			all.WriteByte(' ')
		}
	}
	return all.String()
}
