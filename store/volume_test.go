package store

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

func TestVolumes(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	at := time.Now().UTC()
	vol := func(id, tenant, name string) Volume {
		return Volume{ID: id, Volume: arenero.Volume{Name: name, Tenant: tenant, Quota: 5, Created: at}}
	}
	for _, v := range []Volume{vol("vol-1", "a", "x"), vol("vol-2", "b", "x"), vol("vol-3", "a", "b")} {
		if err := s.AddVolume(ctx, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddVolume(ctx, vol("vol-4", "a", "x")); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("the same name twice: %v", err)
	}
	got, err := s.Volumes(ctx, "a")
	if d := cmp.Diff([]Volume{vol("vol-3", "a", "b"), vol("vol-1", "a", "x")}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if all, err := s.Volumes(ctx, ""); len(all) != 3 || err != nil {
		t.Error(all, err)
	}
	if one, err := s.Volume(ctx, "b", "x"); one.ID != "vol-2" || err != nil {
		t.Error(one, err)
	}
	if err := s.RemoveVolume(ctx, "vol-1"); err != nil {
		t.Error(err)
	}
	if err := s.RemoveVolume(ctx, "vol-1"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := s.Volume(ctx, "a", "x"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("read after it was removed: %v", err)
	}
}

func TestSnapshotKeepsVolumes(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	want := arenero.Snapshot{
		ID: "snap-1", Tenant: "a", Sandbox: "sbx-1", Created: time.Now().UTC(), Labels: map[string]string{},
		Volumes: []arenero.VolumeMount{{Name: "x", Path: "/x", ReadOnly: true}},
	}
	if err := s.AddSnapshot(ctx, want); err != nil {
		t.Fatal(err)
	}
	got, err := s.Snapshot(ctx, "snap-1")
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
}
