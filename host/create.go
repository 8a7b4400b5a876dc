package host

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/dial"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

// Who asks.
type Who = arenero.Who

// An origin is what a sandbox is made of.
type origin struct {
	image  arenero.Image
	engine arenero.Engine
	caps   arenero.Capabilities
	dir    string // of the state to restore; "" boots
	from   string // what to call a restore of it: restore, snapshot, fork, wake
	why    string // why there is nothing to restore
	strict bool   // a boot is no substitute: the state is the point
}

// Create makes a sandbox and returns when it can be used. All or nothing: after
// an error, or when the caller goes away, nothing of it is left but its record.
//
// [arenero.Invalid] for a spec that can never be, [arenero.NotFound] for an
// unknown image, snapshot or engine, [arenero.Exhausted] when it does not fit,
// [arenero.Unavailable] when this machine can not isolate it as asked.
func (h *Host) Create(ctx context.Context, who Who, spec arenero.Spec) (arenero.Sandbox, error) {
	b, err := h.create(ctx, who, spec)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	return b.sandbox(), nil
}

func (h *Host) create(ctx context.Context, who Who, spec arenero.Spec) (*box, error) {
	const op = "create sandbox"
	if err := h.allow(ctx, who, ScopeRun, op); err != nil {
		return nil, err
	}
	spec, from, err := h.originOf(ctx, who, spec)
	if err != nil {
		return nil, err
	}
	return h.make(ctx, who, spec, from, lineage{snapshot: spec.Snapshot})
}

// lineage is where a sandbox comes from.
type lineage struct{ parent, snapshot string }

// originOf completes a spec and finds what the sandbox is to be made of.
func (h *Host) originOf(ctx context.Context, who Who, spec arenero.Spec) (arenero.Spec, origin, error) {
	if spec.Snapshot != "" {
		return h.fromSnapshot(ctx, who, spec)
	}
	orDefault(&spec.Image, "python")
	spec, err := h.complete(spec)
	if err != nil {
		return spec, origin{}, err
	}
	engine, caps, err := h.engine(ctx, spec.Engine)
	if err != nil {
		return spec, origin{}, err
	}
	img, err := h.Images.Get(ctx, spec.Image)
	if err != nil {
		return spec, origin{}, err
	}
	h.findSnapshot(&img, engine, caps)
	return spec, origin{image: img, engine: engine, caps: caps, dir: img.Snapshot, from: "restore", why: img.ColdWhy}, nil
}

// engine finds an engine that can work here.
func (h *Host) engine(ctx context.Context, name string) (arenero.Engine, arenero.Capabilities, error) {
	const op = "create sandbox"
	engine := h.Engines[name]
	if engine == nil {
		return nil, arenero.Capabilities{}, arenero.Errorf(arenero.NotFound, op, "", "no engine %q", clip(name, 64)).
			WithHint("engines here: %s", strings.Join(h.engineNames(), ", "))
	}
	caps, err := h.caps.of(ctx, engine)
	if err != nil {
		return nil, caps, err
	}
	if len(caps.Missing) > 0 {
		return nil, caps, arenero.Errorf(arenero.Unavailable, op, "", "engine %s: %s", name, caps.Missing[0].What).
			WithHint("%s", caps.Missing[0].Mend)
	}
	return engine, caps, nil
}

// make admits a sandbox and brings it to running.
func (h *Host) make(ctx context.Context, who Who, spec arenero.Spec, from origin, line lineage) (*box, error) {
	if err := h.mountable(ctx, who, from, spec.Volumes); err != nil {
		return nil, err
	}
	now := h.now()
	sb := arenero.Sandbox{
		ID: NewID(), State: arenero.Creating, Image: from.image.Name, Engine: spec.Engine, Limits: spec.Limits,
		Labels: spec.Labels, Hostname: spec.Hostname, Tenant: who.Tenant, Created: now, Ends: now.Add(spec.Lifetime),
		Lifetime: arenero.Seconds(spec.Lifetime), Idle: arenero.Seconds(max(spec.Idle, 0)), OnTimeout: spec.OnTimeout,
		Parent: line.parent, Snapshot: line.snapshot, Volumes: spec.Volumes,
	}
	orDefault(&sb.Hostname, sb.ID)
	b := newBox(ctx, sb, now)
	b.image, b.digest = from.image, from.image.Digest
	leave, err := h.admit(ctx, who, b, spec.Wait)
	if err != nil {
		b.stop()
		return nil, err
	}
	defer leave()
	defer close(b.made)
	h.meter.moved(arenero.Creating)
	started := time.Now()
	if err := h.build(ctx, b, from, spec); err != nil {
		b.stop()
		h.meter.created("failed", time.Since(started))
		return nil, h.abandon(ctx, b, err)
	}
	h.meter.created(b.sandbox().From, time.Since(started))
	return b, nil
}

// build makes the box and brings the sandbox to running, in the fastest way there
// is: out of the pool, by a restore, by a boot.
func (h *Host) build(ctx context.Context, b *box, from origin, spec arenero.Spec) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()

	if len(spec.Volumes) > 0 && !from.strict {
		from.dir, from.why = "", "it has volumes, and the warm snapshot of its image has none"
	}
	if h.claim(ctx, b, from, spec) {
		return h.running(ctx, b, "pool", "")
	}
	b.mu.Lock()
	b.recorded = true
	row := store.Row{Sandbox: b.sb, Box: newBoxID(b.id()), Digest: b.digest}
	b.mu.Unlock()
	if err := h.store.AddSandbox(ctx, row); err != nil {
		b.mu.Lock()
		b.recorded = false
		b.mu.Unlock()
		return err
	}
	how, why := from.from, from.why
	if from.dir != "" {
		var ready bool
		ready, err = h.attempt(ctx, b, row.Box, from, h.identity(b, from, spec.Env), spec)
		if ready && how == "restore" {
			how = "standby"
		}
		if err != nil && !from.strict && ctx.Err() == nil {
			why = "the warm snapshot could not be restored: " + clip(printable(err.Error()), 300)
			h.log.Warn("restore warm snapshot", "id", b.id(), "image", b.image.Name, "err", err)
		}
	}
	if from.dir == "" || err != nil && !from.strict && ctx.Err() == nil {
		how, from.dir = "boot", ""
		_, err = h.attempt(ctx, b, row.Box, from, h.identity(b, from, spec.Env), spec)
	}
	if err != nil {
		return err
	}
	if why == "" {
		why = h.pools.whyNone()
	}
	return h.running(ctx, b, how, why)
}

// running writes that a sandbox runs and begins to watch its body; if either can
// not be, the body goes.
func (h *Host) running(ctx context.Context, b *box, how, why string) error {
	y := b.at()
	b.mu.Lock()
	ends := h.now().Add(time.Duration(b.sb.Lifetime))
	b.mu.Unlock()
	err := h.move(ctx, b, store.Change{To: arenero.Running, From: how, FromWhy: why, Box: y.id, StateID: "-", Ends: ends})
	if err != nil {
		return h.takeBack(ctx, b, err)
	}
	if !h.follow(b, y) {
		return h.takeBack(ctx, b, arenero.Errorf(arenero.Unavailable, "create sandbox", b.id(), "the daemon is stopping"))
	}
	return nil
}

// follow begins to watch a body. False when the host is being closed.
func (h *Host) follow(b *box, y *body) bool {
	watch, leave := context.WithCancel(b.life)
	y.leave = leave
	if h.spawn(func() { h.watch(watch, b, y) }) {
		return true
	}
	leave()
	return false
}

// attempt gives a sandbox a body in one way and greets its guest, or leaves
// nothing. ready says that the box was prepared ahead.
func (h *Host) attempt(ctx context.Context, b *box, id string, from origin, w arenero.Wake, spec arenero.Spec) (ready bool, err error) {
	var back undo
	defer func() {
		if err != nil {
			back.run(ctx, func(e error) { h.log.Error("take back half-made sandbox", "id", b.id(), "err", e) })
		}
	}()
	ask := arenero.Box{
		ID: id, RootFS: from.image.RootFS, Restore: from.dir, Hostname: w.Hostname, Limits: spec.Limits,
	}
	if ask.Mounts, err = h.lendVolumes(ctx, b); err != nil {
		return false, err
	}
	inst, ready, err := h.start(ctx, from, &ask)
	if err != nil {
		return ready, err
	}
	back.add(inst.Destroy)
	guest, err := greet(ctx, inst, 30*time.Second)
	if err != nil {
		return ready, h.whyMute(ctx, inst, err)
	}
	back.add(func(context.Context) error { return guest.Close() })
	if err := guest.Wake(ctx, w); err != nil {
		return ready, h.whyMute(ctx, inst, err)
	}
	b.settle(newBody(inst.ID(), inst, guest))
	return ready, nil
}

// start asks the engine for a box. A state is checked by its hashes while the
// engine prepares, and never restored if they do not hold.
func (h *Host) start(ctx context.Context, from origin, ask *arenero.Box) (inst arenero.Instance, ready bool, err error) {
	if from.dir == "" {
		inst, err = from.engine.Create(ctx, *ask)
		return inst, false, err
	}
	checked := make(chan error, 1)
	go func() { checked <- h.trust.check(from.dir, from.strict) }() // joined below, on every way
	prepared, ready := h.pools.standby(from, *ask)
	if prepared == nil {
		preparer, ok := from.engine.(arenero.Preparer)
		if !ok {
			if err := <-checked; err != nil {
				return nil, false, err
			}
			inst, err = from.engine.Create(ctx, *ask)
			return inst, false, err
		}
		if prepared, err = preparer.Prepare(ctx, *ask); err != nil {
			err = errors.Join(err, <-checked)
			return nil, false, err
		}
	}
	if err := <-checked; err != nil {
		if derr := prepared.Destroy(context.WithoutCancel(ctx)); derr != nil {
			h.log.Error("take back prepared box", "id", prepared.ID(), "err", derr)
		}
		return nil, ready, err
	}
	ask.ID = prepared.ID()
	inst, err = prepared.Start(ctx, *ask)
	return inst, ready, err
}

// identity is what the guest is told at its first Wake. A state that a user made
// has the environment in it already; env is added.
func (h *Host) identity(b *box, from origin, extra map[string]string) arenero.Wake {
	env := make(map[string]string, len(from.image.Env)+len(extra))
	if !from.strict {
		maps.Copy(env, from.image.Env)
	}
	maps.Copy(env, extra)
	sb := b.sandbox()
	return arenero.Wake{
		SandboxID: sb.ID, Hostname: sb.Hostname, Now: h.now(), Entropy: entropy(),
		Env: env, Limits: sb.Limits, User: userOf(from.image), Workdir: workdirOf(from.image),
	}
}

// greet opens the wire and asks who answers.
func greet(ctx context.Context, inst arenero.Instance, within time.Duration) (arenero.Guest, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := inst.Dial(ctx)
	if err != nil {
		return nil, err
	}
	guest, err := dial.Open(ctx, conn) // conn is its own from here
	if err != nil {
		return nil, err
	}
	if _, err := guest.Hello(ctx); err != nil {
		_ = guest.Close() // likewise
		return nil, err
	}
	return guest, nil
}

// whyMute adds to a failed greeting how the box ended, if it has.
func (h *Host) whyMute(ctx context.Context, inst arenero.Instance, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 200*time.Millisecond)
	defer cancel()
	exit, werr := inst.Wait(ctx)
	if werr != nil {
		return arenero.Errorf(arenero.CodeOf(err), "greet guest", inst.ID(), "%w", err)
	}
	if exit.OutOfMemory {
		return arenero.Errorf(arenero.Exhausted, "greet guest", inst.ID(), "the box ran out of memory while it started: %w", err).
			WithHint("give it more memory")
	}
	return arenero.Errorf(arenero.Unavailable, "greet guest", inst.ID(), "the box ended while it started (%s): %w", printable(exit.Reason), err)
}

// takeBack destroys a body that was made but can not be kept.
func (h *Host) takeBack(ctx context.Context, b *box, cause error) error {
	y := b.at()
	b.settle(nil)
	var back undo
	back.add(y.inst.Destroy)
	back.add(func(context.Context) error { y.part(); return nil })
	back.run(ctx, func(e error) { h.log.Error("take back sandbox", "id", b.id(), "err", e) })
	return cause
}

// abandon records that a sandbox could not be made, and says why to the caller.
func (h *Host) abandon(ctx context.Context, b *box, cause error) error {
	if b.state() == arenero.Killing { // whoever kills it writes the record
		return arenero.Errorf(arenero.Canceled, "create sandbox", b.id(), "it was killed while it was made")
	}
	if ctx.Err() != nil && arenero.CodeOf(cause) != arenero.Timeout {
		cause = arenero.Errorf(arenero.Canceled, "create sandbox", b.id(), "the caller went away: %w", cause)
	}
	rec, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	err := h.move(rec, b, store.Change{To: arenero.Failed, Reason: clip(printable(cause.Error()), 1000)})
	if err != nil && b.state() != arenero.Killing {
		h.log.Error("record failed sandbox", "id", b.id(), "err", err)
	}
	if b.state() != arenero.Killing {
		h.drop(b)
		h.letGo(ctx, b)
	}
	return cause
}

func (h *Host) drop(b *box) {
	h.mu.Lock()
	delete(h.boxes, b.id())
	h.mu.Unlock()
	h.queue.poke()
}

// snapshotKey names the machine and the program that a state is good for.
func (h *Host) stateKey(from origin) image.Key {
	return h.snapshotKey(from.engine, from.caps, from.image)
}
