package host

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

// Snapshot keeps the memory and the files of a sandbox as they are now; the
// sandbox goes on, after it stood still for as long as the writing takes. It may
// run or sleep. Nothing is left of a snapshot that could not be finished.
func (h *Host) Snapshot(ctx context.Context, who Who, id, name string) (arenero.Snapshot, error) {
	const op = "snapshot sandbox"
	if len(name) > 128 || !utf8.ValidString(name) {
		return arenero.Snapshot{}, arenero.Errorf(arenero.Invalid, op, "", "the name is at most 128 bytes of UTF-8")
	}
	b, err := h.own(ctx, who, id, ScopeRun, op)
	if err != nil {
		return arenero.Snapshot{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	n := arenero.Snapshot{ID: "snap-" + randomText(26), Name: name, Created: h.now(), Usable: true}
	k, err := h.keep(ctx, b, n.ID, op)
	if err != nil {
		return arenero.Snapshot{}, err
	}
	sb := b.sandbox()
	n.Tenant, n.Sandbox, n.Engine, n.Limits, n.Labels = sb.Tenant, sb.ID, sb.Engine, sb.Limits, sb.Labels
	n.Volumes = sb.Volumes
	n.Image, n.Size = k.Key.Image, k.Size
	if err := h.store.AddSnapshot(ctx, n); err != nil {
		return arenero.Snapshot{}, errors.Join(err, h.Images.Drop(n.ID))
	}
	h.tell(sb, "snapshot", map[string]string{"snapshot": n.ID, "name": name})
	return n, nil
}

// keep writes the state of a sandbox under an id; the caller has its turn, and
// the sandbox is afterwards what it was before.
func (h *Host) keep(ctx context.Context, b *box, id, op string) (image.Kept, error) {
	b.mu.Lock()
	y, was, state := b.body, b.sb.State, b.stateID
	b.mu.Unlock()
	if was == arenero.Hibernated {
		return h.Images.KeepAgain(ctx, id, state)
	}
	if was != arenero.Running && was != arenero.Paused || y == nil {
		return image.Kept{}, notRunning(op, b.sandbox())
	}
	from, err := h.stateOf(ctx, b, op)
	if err != nil {
		return image.Kept{}, err
	}
	snap, ok := y.inst.(arenero.Snapshotter)
	if !ok || !from.caps.Snapshot {
		return image.Kept{}, arenero.Errorf(arenero.Unavailable, op, b.id(), "engine %s can not write snapshots here", b.engine)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	y.freeze()
	k, err := h.Images.Keep(ctx, id, from.image, h.stateKey(from), func(dir string) error { return snap.Snapshot(ctx, dir, true) })
	if was == arenero.Running {
		y.thaw()
	}
	return k, err
}

// Snapshots lists the tenant's snapshots in the order they were made; sandbox ""
// is of all sandboxes.
func (h *Host) Snapshots(ctx context.Context, who Who, sandbox, after string, limit int) ([]arenero.Snapshot, error) {
	const op = "list snapshots"
	if err := h.allow(ctx, who, ScopeRead, op); err != nil {
		return nil, err
	}
	orDefault(&limit, 100)
	if limit < 0 || limit > 1000 {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "limit is %d, must be between 1 and 1000", limit)
	}
	all, err := h.store.Snapshots(ctx, who.Tenant, sandbox, after, limit)
	for i := range all {
		h.judge(ctx, &all[i])
	}
	return all, err
}

// GetSnapshot returns one snapshot. [arenero.NotFound] when there is none or it
// is another tenant's.
func (h *Host) GetSnapshot(ctx context.Context, who Who, id string) (arenero.Snapshot, error) {
	n, err := h.snapshot(ctx, who, id, ScopeRead, "get snapshot")
	if err == nil {
		h.judge(ctx, &n)
	}
	return n, err
}

// RemoveSnapshot removes a snapshot from disk. Sandboxes that were made of it
// live on.
func (h *Host) RemoveSnapshot(ctx context.Context, who Who, id string) error {
	const op = "remove snapshot"
	if _, err := h.snapshot(ctx, who, id, ScopeRun, op); err != nil {
		return err
	}
	// The record first: files without one are swept at the next start.
	if err := h.store.RemoveSnapshot(ctx, id); err != nil {
		return err
	}
	return h.Images.Drop(id)
}

func (h *Host) snapshot(ctx context.Context, who Who, id string, scope Scope, op string) (arenero.Snapshot, error) {
	if err := h.allow(ctx, who, scope, op); err != nil {
		return arenero.Snapshot{}, err
	}
	n, err := h.store.Snapshot(ctx, id)
	if arenero.CodeOf(err) == arenero.NotFound || err == nil && n.Tenant != who.Tenant {
		return arenero.Snapshot{}, arenero.Errorf(arenero.NotFound, op, clip(id, 64), "no such snapshot").WithHint("list the snapshots there are")
	}
	return n, err
}

// judge says of a snapshot whether it can be restored here.
func (h *Host) judge(ctx context.Context, n *arenero.Snapshot) {
	_, err := h.kept(ctx, n.Engine, n.ID, "use snapshot", n.ID)
	n.Usable, n.Why = err == nil, ""
	if err != nil {
		n.Why = printable(err.Error())
	}
}

// fromSnapshot completes a spec that starts from a snapshot.
func (h *Host) fromSnapshot(ctx context.Context, who Who, spec arenero.Spec) (arenero.Spec, origin, error) {
	const op = "create sandbox"
	if spec.Image != "" {
		return spec, origin{}, arenero.Errorf(arenero.Invalid, op, "", "it names an image and a snapshot").WithHint("leave one out")
	}
	n, err := h.snapshot(ctx, who, spec.Snapshot, ScopeRun, op)
	if err != nil {
		return spec, origin{}, err
	}
	if spec.Engine != "" && spec.Engine != n.Engine {
		return spec, origin{}, arenero.Errorf(arenero.Invalid, op, "", "the snapshot is of engine %s", n.Engine)
	}
	spec.Engine = n.Engine
	inherit(&spec, n.Limits, n.Labels)
	if err := withVolumes(&spec, n.Volumes, op); err != nil {
		return spec, origin{}, err
	}
	if spec, err = h.complete(spec); err != nil {
		return spec, origin{}, err
	}
	from, err := h.kept(ctx, n.Engine, n.ID, op, n.ID)
	from.from = "snapshot"
	return spec, from, err
}

// inherit fills in what a copy has from what it is a copy of. The disk, and what
// the guest agent enforces, are part of the state.
func inherit(spec *arenero.Spec, l arenero.Limits, labels map[string]string) {
	ask := spec.Limits
	spec.Limits = l
	if ask.CPUs != 0 {
		spec.Limits.CPUs = ask.CPUs
	}
	if ask.Memory != 0 {
		spec.Limits.Memory = ask.Memory
	}
	if ask.Timeout != 0 {
		spec.Limits.Timeout = ask.Timeout
	}
	if ask.Output != 0 {
		spec.Limits.Output = ask.Output
	}
	if spec.Labels == nil {
		spec.Labels = labels
	}
}

// Rollback puts a sandbox back to one of its own snapshots: same id, the memory
// and the files of then. What runs in it now is gone. If the snapshot can not be
// restored, the sandbox stays as it is.
func (h *Host) Rollback(ctx context.Context, who Who, id, snapshot string) (arenero.Sandbox, error) {
	const op = "roll back sandbox"
	b, err := h.own(ctx, who, id, ScopeRun, op)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	n, err := h.snapshot(ctx, who, snapshot, ScopeRun, op)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	if n.Sandbox != id {
		return arenero.Sandbox{}, arenero.Errorf(arenero.Invalid, op, id, "%s is a snapshot of another sandbox", n.ID).
			WithHint("make a new sandbox of it")
	}
	from, err := h.kept(ctx, b.engine, n.ID, op, id)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	return h.after(b, h.rollback(ctx, b, from, n))
}

func (h *Host) rollback(ctx context.Context, b *box, from origin, n arenero.Snapshot) error {
	b.mu.Lock()
	was, old, state := b.sb.State, b.body, b.stateID
	b.mu.Unlock()
	if was != arenero.Running && was != arenero.Paused && was != arenero.Hibernated {
		return notRunning("roll back sandbox", b.sandbox())
	}
	if err := h.room("roll back sandbox"); err != nil {
		return err
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Resuming}); err != nil {
		return err
	}
	if err := h.rise(ctx, b, from); err != nil {
		b.settle(old)
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		if merr := h.move(back, b, store.Change{To: was}); merr != nil {
			h.log.Error("record sandbox that was not rolled back", "id", b.id(), "err", merr)
		}
		return err
	}
	if old != nil {
		old.leave()
		old.ended(arenero.Exit{Destroyed: true, Reason: "the sandbox was rolled back"})
		old.part()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		if err := old.inst.Destroy(end); err != nil {
			h.log.Error("clear up after rollback", "id", b.id(), "err", err)
		}
	}
	if state != "" {
		if err := h.Images.Drop(state); err != nil {
			h.log.Error("drop state of a sandbox that was rolled back", "id", b.id(), "err", err)
		}
	}
	h.tell(b.sandbox(), "rollback", map[string]string{"snapshot": n.ID})
	return nil
}
