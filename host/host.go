// Package host decides: who may ask, what fits the machine, when a sandbox is
// made, sleeps and ends. Its doors translate and its engines make boxes; neither
// holds a policy.
//
// # The life of a sandbox here
//
// [Host.Create] writes the intent to the store, asks an engine for a box (restored
// from the image's warm snapshot if there is a usable one, booted otherwise),
// greets the guest agent and gives it its identity. [Host.Guest] hands out that
// agent to those who may have it. A watcher waits for the box to end by itself;
// [Host.Run] ends it when its time is up; [Host.Kill] ends it when asked. Whoever
// ends it, nothing of it is left, and [Host.Get] says why.
package host

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

// teardown is how long taking down one box may last before it is left to the
// reaper to try again.
const teardown = 30 * time.Second

// greetAgain is how long the guest of a box that an earlier daemon made may take
// to answer.
const greetAgain = 10 * time.Second

// Config is what a Host is made of. Engines, Images and Store are needed; the
// Host owns none of them.
type Config struct {
	Engines       map[string]arenero.Engine
	DefaultEngine string // "" is "gvisor"
	Images        *image.Store
	Store         *store.Store
	VolumeDir     string // folder that volumes are kept in; "" is none
	AgentDigest   string // of the guest agent: a warm snapshot holds the agent's memory
	Log           *slog.Logger
	Now           func() time.Time // nil is time.Now

	Lifetime     time.Duration // of a sandbox that asks for none; 0 is an hour
	MaxLifetime  time.Duration // 0 is 24 hours
	Idle         time.Duration // a sandbox unused and at rest for so long sleeps; 0 is never
	Grace        time.Duration // how far past its timeout a run may answer before its sandbox is killed; 0 is 5 s
	MaxSandboxes int           // at once; 0 is 1000
	Warm         bool          // make missing warm snapshots in the background, while Run runs
	Keep         bool          // Close leaves the sandboxes for the next daemon
	PoolMax      int           // sandboxes kept ready of a size that is in demand; 0 is none

	HibernateAfter time.Duration // a sandbox that slept in memory for so long goes to disk; 0 is 10 minutes, below 0 is only when memory is short
	MaxSleep       time.Duration // one that slept for so long is ended; 0 is never
}

// Host is one machine's sandboxes. Its methods may be called from any number of
// goroutines; their errors are *arenero.Error.
type Host struct {
	Config

	store  *store.Store
	now    func() time.Time
	log    *slog.Logger
	meter  *meter
	keys   keyring
	caps   probes
	warm   warmer
	trust  trust
	queue  gates
	pools  pools
	events events
	acts   acts

	volumes volumes

	deepening atomic.Bool // a sandbox is being put from memory to disk

	known sync.Once
	ready chan struct{} // closed when what an earlier daemon left is known

	mu     sync.Mutex
	boxes  map[string]*box
	closed bool

	work sync.WaitGroup // watchers and teardowns
}

// New makes a host. It starts nothing and touches nothing: call [Host.Recover] or
// [Host.Run] to take up what an earlier daemon left.
func New(c Config) (*Host, error) {
	if c.DefaultEngine == "" {
		c.DefaultEngine = "gvisor"
	}
	if c.Store == nil || c.Images == nil {
		return nil, arenero.Errorf(arenero.Invalid, "make host", "", "a store and images are needed")
	}
	if c.Engines[c.DefaultEngine] == nil {
		return nil, arenero.Errorf(arenero.Invalid, "make host", "", "no engine %q", c.DefaultEngine)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	orDefault(&c.Lifetime, time.Hour)
	orDefault(&c.MaxLifetime, 24*time.Hour)
	orDefault(&c.Grace, 5*time.Second)
	orDefault(&c.MaxSandboxes, 1000)
	orDefault(&c.HibernateAfter, 10*time.Minute)
	h := &Host{Config: c, store: c.Store, now: c.Now, log: c.Log, boxes: map[string]*box{}}
	h.meter = newMeter(h)
	h.warm.wake = make(chan struct{}, 1)
	h.pools.news = make(chan struct{}, 1)
	h.ready = make(chan struct{})
	return h, nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Run takes up what an earlier daemon left, then ends sandboxes whose time is
// up, makes missing warm snapshots and forgets old records, until ctx ends. It
// returns nil when ctx did.
func (h *Host) Run(ctx context.Context) error {
	if err := h.Recover(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var side sync.WaitGroup
	defer side.Wait()
	side.Go(func() { h.eventLoop(ctx) })
	side.Go(func() { h.poolLoop(ctx) })
	if h.Warm {
		side.Go(func() { h.warmLoop(ctx) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var forgot time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.reap(ctx)
		}
		if now := h.now(); now.Sub(forgot) > time.Hour {
			forgot = now
			h.forget(ctx, now)
		}
	}
}

// forget removes the records of what ended long ago.
func (h *Host) forget(ctx context.Context, now time.Time) {
	_, err := h.store.ForgetSandboxes(ctx, now.Add(-24*time.Hour))
	err = errors.Join(err, h.store.ForgetEvents(ctx, now.Add(-7*24*time.Hour)), h.store.ForgetActs(ctx, now.Add(-keepActs)))
	if err != nil && ctx.Err() == nil {
		h.log.Error("forget old records", "err", err)
	}
	h.restVolumes(ctx) // what could not be unmounted when it was left
}

// endSoon ends a box without waiting for it; Close waits.
func (h *Host) endSoon(ctx context.Context, b *box, reason string, cause arenero.ExitReason) {
	if !b.turn.TryLock() {
		return // somebody is at it
	}
	started := h.spawn(func() {
		defer b.turn.Unlock()
		if err := h.end(ctx, b, reason, cause); err != nil {
			h.log.Error("end sandbox", "id", b.id(), "err", err)
		}
	})
	if !started { // Close ends it
		b.turn.Unlock()
	}
}

// spawn runs f beside us; Close waits for it. After Close has begun it does
// nothing and returns false.
func (h *Host) spawn(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.work.Go(f)
	return true
}

func (h *Host) held() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*box, 0, len(h.boxes))
	for _, b := range h.boxes {
		out = append(out, b)
	}
	return out
}

// Close ends every sandbox, unless the host is to keep them, and waits for
// everything it started. It is idempotent. Stop Run first.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	var errs []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, b := range h.held() {
		all.Go(func() {
			if err := h.release(ctx, b); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	h.work.Wait()
	return errors.Join(errs...)
}

// release lets go of one box at shutdown.
func (h *Host) release(ctx context.Context, b *box) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	state := b.state()
	sleeps := state == arenero.Hibernated // on disk, and safe there
	if !sleeps && (!h.Keep || state != arenero.Running && state != arenero.Paused) {
		return h.end(ctx, b, "the daemon was stopped", arenero.Cancelled)
	}
	b.stop()
	if y := b.at(); y != nil {
		y.leave()
		y.part()
	}
	h.drop(b)
	return nil
}

// Get tells the truth about one sandbox, also about one that has ended within
// the last day. [arenero.NotFound] when there is none or it is another tenant's.
func (h *Host) Get(ctx context.Context, who Who, id string) (arenero.Sandbox, error) {
	const op = "get sandbox"
	if err := h.allow(ctx, who, ScopeRead, op); err != nil {
		return arenero.Sandbox{}, err
	}
	return h.lookup(ctx, who, id, op)
}

func (h *Host) lookup(ctx context.Context, who Who, id, op string) (arenero.Sandbox, error) {
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b != nil {
		if sb := b.sandbox(); sb.Tenant == who.Tenant {
			return sb, nil
		}
		return arenero.Sandbox{}, noSandbox(op, id)
	}
	row, err := h.store.Sandbox(ctx, id)
	if arenero.CodeOf(err) == arenero.NotFound || err == nil && row.Tenant != who.Tenant {
		return arenero.Sandbox{}, noSandbox(op, id)
	}
	return row.Sandbox, err
}

// noSandbox is the one answer for "there is none" and "it is not yours".
func noSandbox(op, id string) error {
	if len(id) > 64 {
		id = ""
	}
	return arenero.Errorf(arenero.NotFound, op, id, "no such sandbox").
		WithHint("it may have ended; list the sandboxes that run")
}

// A Filter chooses what [Host.List] returns.
type Filter struct {
	All    bool            // those that have ended too
	States []arenero.State // overrides All
	Image  string
	Labels map[string]string // all of these
	After  string            // id of the last one of the page before
	Limit  int               // 0 is 100; at most 1000
}

// List names the tenant's sandboxes in the order of their creation.
func (h *Host) List(ctx context.Context, who Who, f Filter) ([]arenero.Sandbox, error) {
	if err := h.allow(ctx, who, ScopeRead, "list sandboxes"); err != nil {
		return nil, err
	}
	orDefault(&f.Limit, 100)
	if f.Limit < 0 || f.Limit > 1000 {
		return nil, arenero.Errorf(arenero.Invalid, "list sandboxes", "", "limit is %d, must be between 1 and 1000", f.Limit)
	}
	states := f.States
	if len(states) == 0 && !f.All {
		for _, s := range arenero.States() {
			if !s.Ended() {
				states = append(states, s)
			}
		}
	}
	rows, err := h.store.Sandboxes(ctx, store.Filter{
		Tenant: who.Tenant, States: states, Image: f.Image, Labels: f.Labels, After: f.After, Limit: f.Limit,
	})
	if err != nil {
		return nil, err
	}
	out := make([]arenero.Sandbox, len(rows))
	for i, r := range rows {
		out[i] = r.Sandbox
	}
	return out, nil
}

// ListImages names the images that sandboxes can be made of.
func (h *Host) ListImages(ctx context.Context, who Who) ([]arenero.Image, error) {
	if err := h.allow(ctx, who, ScopeRead, "list images"); err != nil {
		return nil, err
	}
	return h.Images.List(ctx)
}
