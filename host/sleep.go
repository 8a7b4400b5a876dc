package host

import (
	"context"
	"errors"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// Pause stops a sandbox in memory: nothing in it runs until it is resumed, by
// [Host.Resume] or by any use of it. It is idempotent.
func (h *Host) Pause(ctx context.Context, who Who, id string) (arenero.Sandbox, error) {
	b, err := h.own(ctx, who, id, ScopeRun, "pause sandbox")
	if err != nil {
		return arenero.Sandbox{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	switch b.state() {
	case arenero.Paused, arenero.Hibernated:
		return b.sandbox(), nil
	}
	return h.after(b, h.pause(ctx, b, "it was asked for"))
}

// Hibernate writes a sandbox to disk and frees its memory; any use of it wakes it
// with all its processes. It is idempotent. Calls that are under way in it are
// cut off.
func (h *Host) Hibernate(ctx context.Context, who Who, id string) (arenero.Sandbox, error) {
	b, err := h.own(ctx, who, id, ScopeRun, "hibernate sandbox")
	if err != nil {
		return arenero.Sandbox{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.state() == arenero.Hibernated {
		return b.sandbox(), nil
	}
	return h.after(b, h.hibernate(ctx, b, "it was asked for"))
}

// Resume wakes a sandbox that sleeps, in memory or on disk. It is idempotent.
func (h *Host) Resume(ctx context.Context, who Who, id string) (arenero.Sandbox, error) {
	b, err := h.own(ctx, who, id, ScopeRun, "resume sandbox")
	if err != nil {
		return arenero.Sandbox{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	return h.after(b, h.wake(ctx, b))
}

func (h *Host) after(b *box, err error) (arenero.Sandbox, error) {
	if err != nil {
		return arenero.Sandbox{}, err
	}
	return b.sandbox(), nil
}

// own finds a sandbox that has not ended, for one who may change it.
func (h *Host) own(ctx context.Context, who Who, id string, scope Scope, op string) (*box, error) {
	if err := h.allow(ctx, who, scope, op); err != nil {
		return nil, err
	}
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b != nil && b.tenant == who.Tenant {
		return b, nil
	}
	sb, err := h.lookup(ctx, who, id, op)
	if err != nil {
		return nil, err
	}
	return nil, notRunning(op, sb)
}

// pause stops a running sandbox in memory; the caller has its turn.
func (h *Host) pause(ctx context.Context, b *box, reason string) error {
	const op = "pause sandbox"
	y := b.at()
	if b.state() != arenero.Running || y == nil {
		return notRunning(op, b.sandbox())
	}
	p, ok := y.inst.(arenero.Pauser)
	if !ok {
		return arenero.Errorf(arenero.Unavailable, op, b.id(), "engine %s can not pause", b.engine)
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Pausing, Reason: reason}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown) // begun: it comes to an end
	defer cancel()
	y.freeze()
	err := p.Pause(ctx)
	if err == nil {
		b.mu.Lock()
		b.slept = h.now()
		b.mu.Unlock()
		if err = h.move(ctx, b, store.Change{To: arenero.Paused}); err == nil {
			return nil
		}
		err = errors.Join(err, p.Resume(ctx))
	}
	y.thaw()
	if merr := h.move(ctx, b, store.Change{To: arenero.Running}); merr != nil {
		h.log.Error("record sandbox that could not be paused", "id", b.id(), "err", merr)
	}
	return err
}

// hibernate writes a sandbox to disk; the caller has its turn. If that fails the
// sandbox goes on as it was.
func (h *Host) hibernate(ctx context.Context, b *box, reason string) (err error) {
	const op = "hibernate sandbox"
	y, was := b.at(), b.state()
	if was != arenero.Running && was != arenero.Paused || y == nil {
		return notRunning(op, b.sandbox())
	}
	from, err := h.stateOf(ctx, b, op)
	if err != nil {
		return err
	}
	snap, ok := y.inst.(arenero.Snapshotter)
	if !ok || !from.caps.Snapshot {
		return arenero.Errorf(arenero.Unavailable, op, b.id(), "engine %s can not write snapshots here", b.engine)
	}
	state := "hib-" + randomText(26)
	if err := h.move(ctx, b, store.Change{To: arenero.Hibernating, Reason: reason, StateID: state}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute) // begun: it comes to an end
	defer cancel()
	y.freeze()
	if was == arenero.Running {
		y.part() // an open connection would be part of the state
	}
	y.leave() // its end is no accident
	_, err = h.Images.Keep(ctx, state, from.image, h.stateKey(from), func(dir string) error { return snap.Snapshot(ctx, dir, false) })
	if err != nil {
		return h.stayAwake(ctx, b, y, was, err)
	}
	y.ended(arenero.Exit{Destroyed: true, Reason: "the sandbox went to sleep"})
	if err := h.move(ctx, b, store.Change{To: arenero.Hibernated}); err != nil {
		return err // the next start finds the state and goes on from there
	}
	b.settle(nil)
	y.part()
	if err := y.inst.Destroy(ctx); err != nil {
		h.log.Error("clear up after hibernation", "id", b.id(), "err", err)
	}
	h.letGo(ctx, b)
	h.queue.poke()
	return nil
}

// stayAwake makes a sandbox go on that could not be written to disk.
func (h *Host) stayAwake(ctx context.Context, b *box, y *body, was arenero.State, cause error) error {
	look, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	exit, werr := y.inst.Wait(look)
	cancel()
	if werr == nil { // it is gone
		h.lost(ctx, b, y, exit)
		return cause
	}
	if was == arenero.Running {
		y.thaw()
		y.mu.Lock()
		y.suspect = true
		y.mu.Unlock()
	}
	if err := h.move(ctx, b, store.Change{To: was, StateID: "-"}); err != nil {
		h.log.Error("record sandbox that could not hibernate", "id", b.id(), "err", err)
	}
	h.follow(b, y)
	return cause
}

// stateOf says what a state of this sandbox is a state of.
func (h *Host) stateOf(ctx context.Context, b *box, op string) (origin, error) {
	engine, caps, err := h.engine(ctx, b.engine)
	if err != nil {
		return origin{}, err
	}
	b.mu.Lock()
	img, digest := b.image, b.digest
	b.mu.Unlock()
	if img.Digest == "" {
		if img, err = h.Images.Get(ctx, digest); err != nil {
			return origin{}, arenero.Errorf(arenero.CodeOf(err), op, b.id(), "its image: %w", err)
		}
		b.mu.Lock()
		b.image = img
		b.mu.Unlock()
	}
	img.Snapshot, img.ColdWhy = "", ""
	return origin{image: img, engine: engine, caps: caps}, nil
}

// wake brings a sleeping sandbox back to running; the caller has its turn.
func (h *Host) wake(ctx context.Context, b *box) error {
	const op = "resume sandbox"
	switch b.state() {
	case arenero.Running:
		return nil
	case arenero.Paused:
		return h.unpause(ctx, b)
	case arenero.Hibernated:
	default:
		return notRunning(op, b.sandbox())
	}
	b.mu.Lock()
	state := b.stateID
	b.mu.Unlock()
	from, err := h.kept(ctx, b.engine, state, op, b.id())
	if err != nil {
		return err
	}
	if err := h.room(op); err != nil {
		return err
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Resuming}); err != nil {
		return err
	}
	started := time.Now()
	err = h.rise(ctx, b, from)
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		if merr := h.move(back, b, store.Change{To: arenero.Hibernated}); merr != nil {
			h.log.Error("record sandbox that did not wake", "id", b.id(), "err", merr)
		}
		h.letGo(back, b)
		return err
	}
	h.meter.created("wake", time.Since(started))
	if err := h.Images.Drop(state); err != nil {
		h.log.Error("drop state of a sandbox that woke", "id", b.id(), "err", err)
	}
	return nil
}

// rise gives a sandbox a new body out of a state.
func (h *Host) rise(ctx context.Context, b *box, from origin) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	sb := b.sandbox()
	if _, err := h.attempt(ctx, b, newBoxID(b.id()), from, h.identity(b, from, nil), arenero.Spec{Limits: sb.Limits}); err != nil {
		return err
	}
	b.mu.Lock()
	b.image = from.image
	b.used = h.now()
	b.mu.Unlock()
	return h.running(ctx, b, sb.From, sb.FromWhy)
}

// kept finds a state on disk and says what it is made of. [arenero.Unavailable]
// when it can not be restored here.
func (h *Host) kept(ctx context.Context, engineName, state, op, id string) (origin, error) {
	engine, caps, err := h.engine(ctx, engineName)
	if err != nil {
		return origin{}, err
	}
	k, err := h.Images.Kept(state)
	if err != nil {
		return origin{}, arenero.Errorf(arenero.CodeOf(err), op, id, "its state on disk: %w", err)
	}
	from := origin{image: k.Image, engine: engine, caps: caps, dir: k.Dir, strict: true}
	if why := k.Fits(h.stateKey(from)); why != "" {
		return origin{}, arenero.Errorf(arenero.Unavailable, op, id, "its state can not be restored here: %s", why).
			WithHint("start the arenero that wrote it, on a machine of the same kind")
	}
	return from, nil
}

// unpause lets a sandbox go on that was stopped in memory.
func (h *Host) unpause(ctx context.Context, b *box) error {
	const op = "resume sandbox"
	y := b.at()
	if y == nil {
		return notRunning(op, b.sandbox())
	}
	p, ok := y.inst.(arenero.Pauser)
	if !ok {
		return arenero.Errorf(arenero.Unavailable, op, b.id(), "engine %s can not resume", b.engine)
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Resuming}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	if err := p.Resume(ctx); err != nil {
		if merr := h.move(ctx, b, store.Change{To: arenero.Paused}); merr != nil {
			h.log.Error("record sandbox that did not resume", "id", b.id(), "err", merr)
		}
		return err
	}
	y.thaw()
	b.mu.Lock()
	b.used = h.now()
	ends := h.now().Add(time.Duration(b.sb.Lifetime))
	b.mu.Unlock()
	return h.move(ctx, b, store.Change{To: arenero.Running, Ends: ends})
}
