package host

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

func newDisk(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := unmountDisk(dir); err != nil {
			t.Error(err)
		}
		if f, err := os.Open(filepath.Join(dir, diskFile)); err == nil {
			defer f.Close()
			if dev := attached(f); dev != nil {
				t.Errorf("%s is left", dev.Name())
				dev.Close()
			}
		}
	})
	if err := makeDisk(t.Context(), dir, size, 1000); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fill(dir, name string, size int64) error {
	return os.WriteFile(filepath.Join(dir, diskDir, name), bytes.Repeat([]byte{1}, int(size)), 0o600)
}

func TestDiskHoldsItsQuota(t *testing.T) {
	const size = 32 * arenero.MiB
	dir := newDisk(t, size)
	if err := fill(dir, "nowhere", 1); err != nil || isMounted(dir) {
		t.Fatalf("not mounted: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, diskDir, "nowhere")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // mounting is idempotent
		if err := mountDisk(dir); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, diskDir), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("it belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, diskDir)); err != nil || len(entries) != 0 {
		t.Errorf("a new volume holds %v, %v", entries, err)
	}
	if err := fill(dir, "half", size/2); err != nil {
		t.Error(err)
	}
	if err := fill(dir, "more", size); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the quota: %v", err)
	}
	sync := func() {
		t.Helper()
		f, err := os.Open(filepath.Join(dir, diskDir))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Syncfs(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	full := diskUsed(dir)
	if full < size*8/10 || full > size {
		t.Errorf("a full volume takes up %d", full)
	}
	for _, name := range []string{"half", "more"} {
		if err := os.Remove(filepath.Join(dir, diskDir, name)); err != nil {
			t.Error(err)
		}
	}
	sync()
	if err := unmountDisk(dir); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second) // the kernel gives back when it has time
	for diskUsed(dir) > full/4 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if used := diskUsed(dir); used > full/4 {
		t.Errorf("what was deleted is not given back: %d, was %d", used, full)
	}
}

// While somebody else has the disk mounted, in mounts that we do not see, it must
// not get a second device: two file systems over one file destroy each other.
func TestDiskIsNeverMountedTwice(t *testing.T) {
	dir := newDisk(t, 16*arenero.MiB)
	if err := mountDisk(dir); err != nil {
		t.Fatal(err)
	}
	// A bind of it stands for the mounts of a box.
	other := t.TempDir()
	if err := unix.Mount(filepath.Join(dir, diskDir), other, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	gone := false
	unbind := func() {
		if !gone {
			gone = true
			if err := unix.Unmount(other, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unbind)
	if err := unmountDisk(dir); err != nil {
		t.Fatal(err)
	}
	if err := mountDisk(dir); err != nil {
		t.Fatal(err)
	}
	if err := fill(dir, "file", 3); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(other, "file")); err != nil {
		t.Errorf("the two mounts are not of one file system: %v", err)
	}
	unbind()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(raw), dir); n != 1 {
		t.Errorf("it is mounted %d times", n)
	}
}

func TestDiskWithoutTool(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, mkfs), []byte("#!/bin/sh\necho no such luck; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if err := makeDisk(t.Context(), t.TempDir(), 16*arenero.MiB, 1000); err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("a tool that fails: %v", err)
	}
}
