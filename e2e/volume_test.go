package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/host"
)

// mounted lists the volumes of a home that are mounted on this machine.
func (m home) mounted(t *testing.T) (at []string) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], filepath.Join(m.dir, "volumes")+"/") {
			at = append(at, f[1])
		}
	}
	return at
}

func mkVolume(t *testing.T, h *host.Host, name string, quota int64) {
	t.Helper()
	start := time.Now()
	if _, err := h.CreateVolume(t.Context(), me(), name, quota); err != nil {
		t.Fatal(err)
	}
	t.Logf("volume %s made in %v", name, time.Since(start))
}

func at(name, path string, readOnly ...bool) arenero.VolumeMount {
	return arenero.VolumeMount{Name: name, Path: path, ReadOnly: len(readOnly) > 0}
}

// bash runs a shell command in a sandbox.
func bash(t *testing.T, h *host.Host, id, script string) string {
	t.Helper()
	g, err := h.Guest(t.Context(), me(), id, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	out, err := enginetest.Output(t.Context(), g, "/bin/bash", "-c", script)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(out)
}

func code(t *testing.T, what string, err error, want arenero.Code) {
	t.Helper()
	if arenero.CodeOf(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestVolumeOutlivesSandboxes(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	const quota = 64 * arenero.MiB
	mkVolume(t, h, "data", quota)
	start := time.Now()
	first := mk(t, h, arenero.Spec{Volumes: []arenero.VolumeMount{at("data", "/workspace/data")}})
	t.Logf("sandbox with a volume made in %v: %s, %s", time.Since(start), first.From, first.FromWhy)
	if first.From != "boot" || !strings.Contains(first.FromWhy, "volumes") || len(first.Volumes) != 1 {
		t.Errorf("%+v", first)
	}
	py(t, h, first.ID, "open('/workspace/data/result.txt', 'w').write('of the first')")
	if v, err := h.GetVolume(t.Context(), me(), "data"); err != nil || len(v.Holders) != 1 || v.Holders[0] != first.ID {
		t.Errorf("%+v %v", v, err)
	}
	code(t, "remove a volume in use", h.RemoveVolume(t.Context(), me(), "data"), arenero.Conflict)

	// Its quota is a full disk, and nobody else's.
	out := bash(t, h, first.ID, "cd data; head -c 100M /dev/zero >big; stat -c %s big; rm big; df --output=size -B1 . | tail -1; echo ok >/workspace/other")
	if !strings.Contains(out, "No space left on device") {
		t.Errorf("100 MiB into 64: %q", out)
	}
	t.Log(out)
	if len(home.mounted(t)) != 1 {
		t.Errorf("mounted: %v", home.mounted(t))
	}
	if err := h.Kill(t.Context(), me(), first.ID); err != nil {
		t.Fatal(err)
	}
	if m := home.mounted(t); len(m) != 0 {
		t.Errorf("nobody holds it, and it is mounted: %v", m)
	}
	// Read-only by any number, in another place.
	var readers []string
	for range 2 {
		r := mk(t, h, arenero.Spec{Volumes: []arenero.VolumeMount{at("data", "/data", true)}})
		readers = append(readers, r.ID)
		if got := bash(t, h, r.ID, "cat /data/result.txt; echo; echo x >/data/x"); !strings.HasPrefix(got, "of the first") || !strings.Contains(got, "Read-only file system") {
			t.Errorf("a reader: %q", got)
		}
	}
	// And a writer beside them: they see what it does.
	w := mk(t, h, arenero.Spec{Volumes: []arenero.VolumeMount{at("data", "/home/user")}})
	bash(t, h, w.ID, "cd; echo news >news; pwd")
	for _, id := range readers {
		if got := bash(t, h, id, "cat /data/news"); got != "news" {
			t.Errorf("a reader sees %q of the writer", got)
		}
	}
	for _, id := range append(readers, w.ID) {
		if err := h.Kill(t.Context(), me(), id); err != nil {
			t.Error(err)
		}
	}
	if err := h.RemoveVolume(t.Context(), me(), "data"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Join(home.dir, "volumes")); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

func TestVolumeOfSleepers(t *testing.T) {
	home := newHome(t)
	h, shut := home.open(t, host.Config{Keep: true})
	mkVolume(t, h, "data", 32*arenero.MiB)
	mkVolume(t, h, "books", 32*arenero.MiB)
	rw, ro := at("data", "/workspace/data"), at("books", "/books", true)
	sb := mk(t, h, arenero.Spec{Volumes: []arenero.VolumeMount{rw, ro}})
	py(t, h, sb.ID, "f = open('/workspace/data/log', 'a'); f.write('one '); f.flush(); x = 1")
	if _, err := h.Hibernate(t.Context(), me(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if m := home.mounted(t); len(m) != 0 {
		t.Errorf("it sleeps on disk, and mounted are %v", m)
	}
	code(t, "remove the volume of a sleeper", h.RemoveVolume(t.Context(), me(), "data"), arenero.Conflict)
	start := time.Now()
	if got := py(t, h, sb.ID, "f.write('two '); f.flush(); print(open('/workspace/data/log').read(), x)"); got != "one two  1" {
		t.Errorf("after it woke: %q", got)
	}
	t.Logf("awake after %v", time.Since(start))

	// A copy would write to the same files: only if that is asked for.
	_, err := h.Fork(t.Context(), me(), sb.ID, 1, arenero.Spec{})
	code(t, "a fork that writes", err, arenero.Conflict)
	_, err = h.Fork(t.Context(), me(), sb.ID, 1, arenero.Spec{Volumes: []arenero.VolumeMount{ro}})
	code(t, "a fork with other volumes", err, arenero.Invalid)
	forks, err := h.Fork(t.Context(), me(), sb.ID, 2, arenero.Spec{Volumes: []arenero.VolumeMount{rw, ro}})
	if err != nil {
		t.Fatal(err)
	}
	for n, f := range forks {
		if got := py(t, h, f.ID, fmt.Sprintf("x += 1; open('/workspace/data/fork%d', 'w').write('x'); print(x)", n)); got != "2" {
			t.Errorf("fork: %q", got)
		}
	}
	if got := bash(t, h, sb.ID, "ls /workspace/data"); got != "fork0\nfork1\nlog" {
		t.Errorf("the parent sees %q", got)
	}
	snap, err := h.Snapshot(t.Context(), me(), sb.ID, "")
	if err != nil || len(snap.Volumes) != 2 {
		t.Fatalf("%+v %v", snap, err)
	}
	_, err = h.Create(t.Context(), me(), arenero.Spec{Snapshot: snap.ID})
	code(t, "a sandbox of its snapshot", err, arenero.Conflict)
	again := mk(t, h, arenero.Spec{Snapshot: snap.ID, Volumes: []arenero.VolumeMount{rw, ro}})
	if got := py(t, h, again.ID, "print(x, open('/workspace/data/log').read())"); got != "1 one two" {
		t.Errorf("out of the snapshot: %q", got)
	}
	py(t, h, sb.ID, "x = 5; f.write('three'); f.flush()")
	if _, err := h.Rollback(t.Context(), me(), sb.ID, snap.ID); err != nil {
		t.Fatal(err)
	}
	if got := py(t, h, sb.ID, "print(x, open('/workspace/data/log').read())"); got != "1 one two three" {
		t.Errorf("rolled back: its memory, not the volume: %q", got)
	}
	if err := h.RemoveSnapshot(t.Context(), me(), snap.ID); err != nil {
		t.Error(err)
	}
	for _, id := range []string{forks[0].ID, forks[1].ID, again.ID} {
		if err := h.Kill(t.Context(), me(), id); err != nil {
			t.Error(err)
		}
	}

	// The next daemon takes it up with its volumes.
	shut()
	h, _ = home.open(t, host.Config{})
	if got := py(t, h, sb.ID, "open('/workspace/data/later', 'w').write('x'); print(x)"); got != "1" {
		t.Errorf("taken up: %q", got)
	}
	if len(home.mounted(t)) != 2 {
		t.Errorf("mounted: %v", home.mounted(t))
	}
	if err := h.Kill(t.Context(), me(), sb.ID); err != nil {
		t.Error(err)
	}
	if m := home.mounted(t); len(m) != 0 {
		t.Errorf("at the end: %v", m)
	}
}

// A file that a sleeper had open is gone when it wakes: that is said, and it can be
// ended.
func TestVolumeChangedUnderASleeper(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	mkVolume(t, h, "data", 32*arenero.MiB)
	spec := arenero.Spec{Volumes: []arenero.VolumeMount{at("data", "/data")}}
	sb := mk(t, h, spec)
	py(t, h, sb.ID, "f = open('/data/file', 'w'); f.write('x'); f.flush()")
	if _, err := h.Hibernate(t.Context(), me(), sb.ID); err != nil {
		t.Fatal(err)
	}
	other := mk(t, h, spec)
	bash(t, h, other.ID, "rm /data/file")
	_, err := h.Resume(t.Context(), me(), sb.ID)
	t.Logf("%v; %s", err, arenero.HintOf(err))
	if err == nil || !strings.Contains(arenero.HintOf(err), "file") {
		t.Errorf("it woke without its file: %v", err)
	}
	stateIs(t, h, sb.ID, arenero.Hibernated)
	bash(t, h, other.ID, "echo -n y >/data/file") // and with it again it wakes
	if got := py(t, h, sb.ID, "print(f.name)"); got != "/data/file" {
		t.Errorf("%q", got)
	}
}
