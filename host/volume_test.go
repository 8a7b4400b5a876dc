package host_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

func volumeHost(t *testing.T) (*host.Host, parts, func()) {
	t.Helper()
	p := newParts(t)
	h, shut := p.open(t, host.Config{VolumeDir: filepath.Join(p.data, "volumes")})
	return h, p, shut
}

func volumeFiles(t *testing.T, p parts) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.data, "volumes"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return entries
}

func wantCode(t *testing.T, what string, err error, code arenero.Code) {
	t.Helper()
	if arenero.CodeOf(err) != code {
		t.Errorf("%s: code %q (%v), want %q", what, arenero.CodeOf(err), err, code)
	}
}

func TestVolumes(t *testing.T) {
	ctx := context.Background()
	h, p, shut := volumeHost(t)
	v, err := h.CreateVolume(ctx, host.Local(), "data", 16*arenero.MiB)
	if err != nil || v.Name != "data" || v.Quota != 16*arenero.MiB || v.Used <= 0 || v.Used > v.Quota || len(v.Holders) != 0 || v.Tenant != "default" {
		t.Fatalf("%+v %v", v, err)
	}
	_, err = h.CreateVolume(ctx, host.Local(), "data", 16*arenero.MiB)
	wantCode(t, "the same name", err, arenero.Conflict)
	for _, name := range []string{"", "A", "a b", "../x", "a/b", "-a", strings.Repeat("a", 64)} {
		_, err := h.CreateVolume(ctx, host.Local(), name, 0)
		wantCode(t, name, err, arenero.Invalid)
	}
	for _, quota := range []int64{-1, 1, host.MinVolume - 1, arenero.MaxDisk + 1} {
		_, err := h.CreateVolume(ctx, host.Local(), "odd", quota)
		wantCode(t, "quota", err, arenero.Invalid)
	}
	_, err = h.CreateVolume(ctx, host.Local(), "huge", arenero.MaxDisk)
	wantCode(t, "more than the disk has", err, arenero.Exhausted)
	if n := len(volumeFiles(t, p)); n != 1 {
		t.Errorf("%d folders, want one", n)
	}
	if all, err := h.Volumes(ctx, host.Local()); err != nil || len(all) != 1 || all[0].Name != "data" {
		t.Errorf("%+v %v", all, err)
	}
	// Another daemon finds it, and sweeps what has no record.
	shut()
	stray := filepath.Join(p.data, "volumes", "vol-stray")
	if err := os.MkdirAll(filepath.Join(stray, "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	h, _ = p.open(t, host.Config{VolumeDir: filepath.Join(p.data, "volumes")})
	if err := h.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stray); !os.IsNotExist(err) {
		t.Errorf("a folder without a record: %v", err)
	}
	if _, err := h.GetVolume(ctx, host.Local(), "data"); err != nil {
		t.Error(err)
	}
	if err := h.RemoveVolume(ctx, host.Local(), "data"); err != nil {
		t.Error(err)
	}
	wantCode(t, "removed twice", h.RemoveVolume(ctx, host.Local(), "data"), arenero.NotFound)
	_, err = h.GetVolume(ctx, host.Local(), "data")
	wantCode(t, "after it was removed", err, arenero.NotFound)
	if files := volumeFiles(t, p); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
}

func TestVolumesOfOthers(t *testing.T) {
	ctx := context.Background()
	h, _, _ := volumeHost(t)
	other := func(c host.Ceilings, scopes ...string) host.Who {
		t.Helper()
		secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "other", Scopes: scopes, Ceilings: c})
		if err != nil {
			t.Fatal(err)
		}
		who, err := h.Authenticate(ctx, secret)
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	small := other(host.Ceilings{Disk: 40 * arenero.MiB}, "run")
	reader := other(host.Ceilings{}, "read")
	if _, err := h.CreateVolume(ctx, host.Local(), "data", 16*arenero.MiB); err != nil {
		t.Fatal(err)
	}
	_, err := h.GetVolume(ctx, small, "data")
	wantCode(t, "another's volume", err, arenero.NotFound)
	wantCode(t, "remove another's", h.RemoveVolume(ctx, small, "data"), arenero.NotFound)
	_, err = h.CreateVolume(ctx, reader, "data", 16*arenero.MiB)
	wantCode(t, "with a key that reads", err, arenero.Denied)
	_, err = h.CreateVolume(ctx, small, "data", 41*arenero.MiB)
	wantCode(t, "above the ceiling", err, arenero.Denied)
	if _, err := h.CreateVolume(ctx, small, "data", 30*arenero.MiB); err != nil {
		t.Error("the same name, another tenant:", err)
	}
	_, err = h.CreateVolume(ctx, small, "more", 16*arenero.MiB)
	wantCode(t, "together above the ceiling", err, arenero.Exhausted)
	if all, err := h.Volumes(ctx, reader); err != nil || len(all) != 1 {
		t.Errorf("%+v %v", all, err)
	}
	wantCode(t, "remove with a key that reads", h.RemoveVolume(ctx, reader, "data"), arenero.Denied)
}

func TestMountsThatCanNotBe(t *testing.T) {
	ctx := context.Background()
	h, _, _ := volumeHost(t)
	if _, err := h.CreateVolume(ctx, host.Local(), "data", 16*arenero.MiB); err != nil {
		t.Fatal(err)
	}
	at := func(path string) []arenero.VolumeMount { return []arenero.VolumeMount{{Name: "data", Path: path}} }
	for _, path := range []string{
		"", "data", "/", "/a/", "/a/../b", "/a//b", "/proc", "/proc/x", "/sys", "/dev/shm", "/run/x", "/etc", "/usr/lib/x",
		"/.arenero", "/.arenero/guest", "/disk", "/a\nb", "/" + strings.Repeat("a", 1100),
	} {
		_, err := h.Create(ctx, host.Local(), arenero.Spec{Volumes: at(path)})
		wantCode(t, path, err, arenero.Invalid)
	}
	for what, mounts := range map[string][]arenero.VolumeMount{
		"twice":   {{Name: "data", Path: "/a"}, {Name: "data", Path: "/b"}},
		"nested":  {{Name: "data", Path: "/a"}, {Name: "other", Path: "/a/b"}},
		"around":  {{Name: "data", Path: "/a/b"}, {Name: "other", Path: "/a"}},
		"no name": {{Path: "/a"}},
	} {
		_, err := h.Create(ctx, host.Local(), arenero.Spec{Volumes: mounts})
		wantCode(t, what, err, arenero.Invalid)
	}
	// The engine of these tests can not mount; gVisor's does, in e2e.
	_, err := h.Create(ctx, host.Local(), arenero.Spec{Volumes: at("/data")})
	wantCode(t, "an engine without mounts", err, arenero.Unavailable)
	if v, err := h.GetVolume(ctx, host.Local(), "data"); err != nil || len(v.Holders) != 0 {
		t.Errorf("held by what was not made: %+v %v", v, err)
	}
}

func TestNoVolumesKept(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	_, err := h.CreateVolume(context.Background(), host.Local(), "data", 0)
	wantCode(t, "a host without a folder", err, arenero.Unavailable)
}
