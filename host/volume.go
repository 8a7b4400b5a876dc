package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// Bounds of volumes.
const (
	MinVolume      = 16 * arenero.MiB
	DefaultVolume  = 1 * arenero.GiB
	maxVolumes     = 1000 // of one tenant
	maxVolumeMount = 8    // of one sandbox
)

// volumeUser owns a new volume: the user of our images. A volume that is empty
// when another image's user first gets it becomes that user's.
const volumeUser = 1000

// volumes are the tenants' folders that outlive sandboxes. What is mounted follows
// from which sandboxes there are and from nothing else, so that it needs no count
// that a crash could falsify.
type volumes struct {
	making sync.Mutex // one who makes a volume checks and then writes
	mu     sync.Mutex // held while disks are mounted, unmounted, removed
}

// CreateVolume makes an empty volume of so many bytes (0 is 1 GiB).
// [arenero.Conflict] when the tenant has one of the name, [arenero.Unavailable]
// when this machine can not hold volumes to their quota.
func (h *Host) CreateVolume(ctx context.Context, who Who, name string, quota int64) (arenero.Volume, error) {
	const op = "make volume"
	if err := h.allow(ctx, who, ScopeRun, op); err != nil {
		return arenero.Volume{}, err
	}
	orDefault(&quota, DefaultVolume)
	if !isLabel(name) {
		return arenero.Volume{}, arenero.Errorf(arenero.Invalid, op, "", "the name must be 1 to 63 of a-z, 0-9 and '-', not at an end")
	}
	if quota < MinVolume || quota > arenero.MaxDisk {
		return arenero.Volume{}, arenero.Errorf(arenero.Invalid, op, name, "the quota is %d bytes, must be between %d and %d", quota, MinVolume, arenero.MaxDisk)
	}
	if h.VolumeDir == "" {
		return arenero.Volume{}, arenero.Errorf(arenero.Unavailable, op, name, "this host keeps no volumes").WithHint("use arenero serve")
	}
	h.volumes.making.Lock()
	defer h.volumes.making.Unlock()
	if err := h.mayKeep(ctx, who, name, quota); err != nil {
		return arenero.Volume{}, err
	}
	v := store.Volume{ID: "vol-" + randomText(26), Volume: arenero.Volume{Name: name, Tenant: who.Tenant, Quota: quota, Created: h.now()}}
	dir := h.volumeDir(v.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return arenero.Volume{}, arenero.Errorf(arenero.Unavailable, op, name, "%w", err)
	}
	err := roomFor(dir, quota)
	if err == nil {
		err = makeDisk(ctx, dir, quota, volumeUser)
	}
	if err == nil {
		err = h.store.AddVolume(ctx, v)
	}
	if err != nil {
		err = errors.Join(err, unmountDisk(dir))
		if !isMounted(dir) {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return arenero.Volume{}, volumeFault(op, name, err)
	}
	return h.described(v), nil
}

// roomFor refuses a quota that the disk could not keep even now. It does not
// reserve it.
func roomFor(dir string, quota int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < quota {
		return arenero.Errorf(arenero.Exhausted, "make volume", "", "%d MiB are free on the disk of the data folder", free/arenero.MiB).
			WithHint("ask for less, or make room")
	}
	return nil
}

// mayKeep refuses what a tenant may not have more of.
func (h *Host) mayKeep(ctx context.Context, who Who, name string, quota int64) error {
	const op = "make volume"
	have, err := h.store.Volumes(ctx, who.Tenant)
	if err != nil {
		return err
	}
	ceil, err := h.ceilings(ctx, who)
	if err != nil {
		return err
	}
	sum := quota
	for _, v := range have {
		if v.Name == name {
			return arenero.Errorf(arenero.Conflict, op, name, "a volume of this name exists")
		}
		sum += v.Quota
	}
	if ceil.Disk > 0 && quota > ceil.Disk {
		return arenero.Errorf(arenero.Denied, op, name, "it asks for %d bytes, this key may have %d", quota, ceil.Disk)
	}
	if ceil.Disk > 0 && sum > ceil.Disk {
		return arenero.Errorf(arenero.Exhausted, op, name, "with it all volumes had %d bytes, this key may have %d", sum, ceil.Disk).
			WithHint("remove a volume")
	}
	if len(have) >= maxVolumes {
		return arenero.Errorf(arenero.Exhausted, op, name, "there are %d volumes, the most one may have", len(have)).WithHint("remove a volume")
	}
	return nil
}

// Volumes lists the tenant's volumes by name.
func (h *Host) Volumes(ctx context.Context, who Who) ([]arenero.Volume, error) {
	if err := h.allow(ctx, who, ScopeRead, "list volumes"); err != nil {
		return nil, err
	}
	all, err := h.store.Volumes(ctx, who.Tenant)
	if err != nil {
		return nil, err
	}
	out := make([]arenero.Volume, len(all))
	for i, v := range all {
		out[i] = h.described(v)
	}
	return out, nil
}

// GetVolume returns one volume. [arenero.NotFound] when there is none.
func (h *Host) GetVolume(ctx context.Context, who Who, name string) (arenero.Volume, error) {
	const op = "get volume"
	if err := h.allow(ctx, who, ScopeRead, op); err != nil {
		return arenero.Volume{}, err
	}
	v, err := h.volume(ctx, who.Tenant, name, op)
	if err != nil {
		return arenero.Volume{}, err
	}
	return h.described(v), nil
}

// RemoveVolume removes a volume and all that is in it. [arenero.Conflict] while a
// sandbox has it, also one that sleeps.
func (h *Host) RemoveVolume(ctx context.Context, who Who, name string) error {
	const op = "remove volume"
	if err := h.allow(ctx, who, ScopeRun, op); err != nil {
		return err
	}
	h.volumes.mu.Lock()
	defer h.volumes.mu.Unlock()
	v, err := h.volume(ctx, who.Tenant, name, op)
	if err != nil {
		return err
	}
	if held := h.described(v).Holders; len(held) > 0 {
		return arenero.Errorf(arenero.Conflict, op, name, "%d sandboxes have it: %s", len(held), clip(strings.Join(held, " "), 200)).
			WithHint("end them first")
	}
	dir := h.volumeDir(v.ID)
	if err := unmountDisk(dir); err != nil {
		return volumeFault(op, name, err)
	}
	// The record first: files without one are swept at the next start.
	if err := h.store.RemoveVolume(ctx, v.ID); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return volumeFault(op, name, err)
	}
	return nil
}

func (h *Host) volume(ctx context.Context, tenant, name, op string) (store.Volume, error) {
	v, err := h.store.Volume(ctx, tenant, name)
	if arenero.CodeOf(err) == arenero.NotFound {
		return v, arenero.Errorf(arenero.NotFound, op, clip(name, 64), "no such volume").WithHint("list the volumes there are")
	}
	return v, err
}

// described adds to a record what is so now.
func (h *Host) described(v store.Volume) arenero.Volume {
	out := v.Volume
	out.Used = min(diskUsed(h.volumeDir(v.ID)), v.Quota)
	out.Holders = []string{}
	for _, b := range h.held() {
		if sb := b.sandbox(); sb.Tenant == v.Tenant && has(sb.Volumes, v.Name) {
			out.Holders = append(out.Holders, sb.ID)
		}
	}
	slices.Sort(out.Holders)
	return out
}

func has(mounts []arenero.VolumeMount, name string) bool {
	return slices.ContainsFunc(mounts, func(m arenero.VolumeMount) bool { return m.Name == name })
}

func (h *Host) volumeDir(id string) string { return filepath.Join(h.VolumeDir, id) }

// lendVolumes mounts the volumes of a sandbox that is to get a body.
func (h *Host) lendVolumes(ctx context.Context, b *box) ([]arenero.Mount, error) {
	const op = "mount volume"
	b.mu.Lock()
	sb, img := b.sb, b.image
	b.mu.Unlock()
	if len(sb.Volumes) == 0 {
		return nil, nil
	}
	h.volumes.mu.Lock()
	defer h.volumes.mu.Unlock()
	var out []arenero.Mount
	for _, m := range sb.Volumes {
		v, err := h.volume(ctx, sb.Tenant, m.Name, op)
		if err != nil {
			return nil, err
		}
		dir := h.volumeDir(v.ID)
		if err := mountDisk(dir); err != nil {
			return nil, volumeFault(op, m.Name, err)
		}
		at := filepath.Join(dir, diskDir)
		if img.Digest != "" && !m.ReadOnly {
			giveEmpty(at, userOf(img))
		}
		out = append(out, arenero.Mount{Source: at, Target: m.Path, ReadOnly: m.ReadOnly})
	}
	return out, nil
}

// giveEmpty makes a volume the user's own, if there is nothing in it.
func giveEmpty(at string, u arenero.User) {
	if entries, err := os.ReadDir(at); err == nil && len(entries) == 0 {
		_ = os.Chown(at, int(u.UID), int(u.GID)) // what can not be written will be noticed
	}
}

// restVolumes unmounts what no sandbox needs that is awake.
func (h *Host) restVolumes(ctx context.Context) {
	if h.VolumeDir == "" {
		return
	}
	h.volumes.mu.Lock()
	defer h.volumes.mu.Unlock()
	all, err := h.store.Volumes(ctx, "")
	if ctx.Err() != nil {
		return // we are being stopped: the next start does it
	}
	if err != nil {
		h.log.Error("list volumes", "err", err)
		return
	}
	awake := map[[2]string]bool{}
	for _, b := range h.held() {
		if sb := b.sandbox(); sb.State != arenero.Hibernated {
			for _, m := range sb.Volumes {
				awake[[2]string{sb.Tenant, m.Name}] = true
			}
		}
	}
	for _, v := range all {
		if awake[[2]string{v.Tenant, v.Name}] {
			continue
		}
		if err := unmountDisk(h.volumeDir(v.ID)); err != nil {
			h.log.Warn("unmount volume; it is tried again", "volume", v.Name, "err", err)
		}
	}
}

// letGo is called when a sandbox has lost its body.
func (h *Host) letGo(ctx context.Context, b *box) {
	if len(b.sandbox().Volumes) > 0 {
		h.restVolumes(context.WithoutCancel(ctx))
	}
}

// sweepVolumes removes the files of volumes that no record speaks of: a crash cut
// off their making or their removal.
func (h *Host) sweepVolumes(ctx context.Context) {
	if h.VolumeDir == "" {
		return
	}
	h.volumes.making.Lock() // what is being made has no record yet
	defer h.volumes.making.Unlock()
	h.volumes.mu.Lock()
	defer h.volumes.mu.Unlock()
	known, err := h.store.Volumes(ctx, "")
	if err != nil {
		h.log.Error("list volumes", "err", err)
		return
	}
	mine := map[string]bool{}
	for _, v := range known {
		mine[v.ID] = true
	}
	entries, err := os.ReadDir(h.VolumeDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.log.Error("list volumes", "err", err)
	}
	for _, e := range entries {
		if mine[e.Name()] || !strings.HasPrefix(e.Name(), "vol-") {
			continue
		}
		dir := h.volumeDir(e.Name())
		err := unmountDisk(dir)
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			h.log.Error("sweep volume", "dir", dir, "err", err)
			continue
		}
		h.log.Info("swept a volume that nobody owns", "dir", dir)
	}
}

func volumeFault(op, name string, err error) error {
	if _, ok := errors.AsType[*arenero.Error](err); ok {
		return err
	}
	return arenero.Errorf(arenero.Unavailable, op, name, "%w", err)
}
