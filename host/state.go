package host

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// A box is a sandbox that this host holds: what the store knows of it, and the
// body it lives in now, if it has one.
type box struct {
	// turn is held by the one that changes what the sandbox is: puts it to sleep,
	// wakes it, takes it down. Making it is done before anybody else can.
	turn sync.Mutex

	stop context.CancelFunc // ends its making and its watchers
	life context.Context    // ends with stop
	made chan struct{}      // closed when its making is over

	name, tenant, engine string // of sb; they never change, so no lock is needed

	mu       sync.Mutex
	sb       arenero.Sandbox
	recorded bool          // the store has a row of it
	image    arenero.Image // what it was made of; empty after a restart until it is needed
	digest   string        // of the image
	stateID  string        // its state on disk while it sleeps there
	body     *body         // nil while it is made, sleeps on disk, or has ended
	active   int           // streams and calls under way
	used     time.Time     // when the last one ended
	slept    time.Time     // since when it is paused
	cpu      sample        // for telling a job without requests from idleness
}

// A body is one box of an engine in which a sandbox lives, from a boot or a
// restore until the box ends. A sandbox that wakes from disk gets another.
type body struct {
	id    string // the engine's name for it
	inst  arenero.Instance
	leave context.CancelFunc // stops watching it

	mu      sync.Mutex
	guest   arenero.Guest // nil until greeted
	suspect bool          // the wire failed a call: greet again before the next
	queues  map[string]*queue
	kernels map[string]bool // that were seen to run
	runs    map[*overseer]struct{}
	frozen  bool

	gone chan struct{} // closed when it has ended; exit is set then
	once sync.Once
	exit arenero.Exit
}

// sample is what a sandbox had used of the processor at a time.
type sample struct {
	at  time.Time
	cpu time.Duration
}

func newBox(ctx context.Context, sb arenero.Sandbox, now time.Time) *box {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &box{sb: sb, name: sb.ID, tenant: sb.Tenant, engine: sb.Engine, life: life, stop: stop, used: now, made: make(chan struct{})}
}

func newBody(id string, inst arenero.Instance, guest arenero.Guest) *body {
	return &body{
		id: id, inst: inst, guest: guest, leave: func() {}, gone: make(chan struct{}),
		queues: map[string]*queue{}, kernels: map[string]bool{}, runs: map[*overseer]struct{}{},
	}
}

// sandbox returns what is known of it now.
func (b *box) sandbox() arenero.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb
}

func (b *box) state() arenero.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb.State
}

func (b *box) id() string { return b.name }

func (b *box) at() *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.body
}

func (b *box) settle(to *body) {
	b.mu.Lock()
	b.body = to
	b.mu.Unlock()
}

// ended records how a body ended; only the first report counts.
func (y *body) ended(e arenero.Exit) {
	y.once.Do(func() {
		y.exit = e
		close(y.gone)
	})
}

// part lets go of the body's guest; the box goes on.
func (y *body) part() {
	y.mu.Lock()
	g := y.guest
	y.guest = nil
	y.mu.Unlock()
	if g != nil {
		_ = g.Close() // the wire is of no use any more either way
	}
}

// freeze stops the clocks of what runs in it, thaw starts them again: a sleeping
// sandbox's runs do not use up their time.
func (y *body) freeze() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.frozen = true
	for o := range y.runs {
		o.freeze()
	}
}

func (y *body) thaw() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.frozen = false
	for o := range y.runs {
		o.thaw()
	}
}

// begin and done bracket one use, so that a busy sandbox is not taken for idle.
func (b *box) begin() {
	b.mu.Lock()
	b.active++
	b.mu.Unlock()
}

func (b *box) done(now time.Time) {
	b.mu.Lock()
	b.active--
	b.used = now
	b.mu.Unlock()
}

// move is the only place where a sandbox changes its state: it asks the table of
// allowed moves, writes to the store and then changes what readers see. A sandbox
// that came out of a pool is written when it runs and not before: until then its
// box belongs to nobody and a crash leaves it to the sweep.
// [arenero.Conflict] for a move that is not allowed.
func (h *Host) move(ctx context.Context, b *box, c store.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.sb.State
	if !arenero.CanMove(from, c.To) {
		return arenero.Errorf(arenero.Conflict, "change state", b.sb.ID, "it is %s and can not become %s", from, c.To)
	}
	c.At = h.now()
	next := b.sb
	next.State = c.To
	if c.Reason != "" {
		next.Reason = c.Reason
	}
	if c.To == arenero.Running {
		next.Reason = ""
	}
	if c.ExitCause != "" {
		next.ExitCause = c.ExitCause
	}
	if c.From != "" {
		next.From, next.FromWhy = c.From, c.FromWhy
	}
	if !c.Ends.IsZero() {
		next.Ends = c.Ends
	}
	switch {
	case b.recorded:
		if err := h.store.MoveSandbox(ctx, b.sb.ID, from, c); err != nil {
			return err
		}
	case c.To == arenero.Running:
		row := store.Row{Sandbox: next, Box: c.Box, Digest: b.digest}
		if err := h.store.AddSandbox(ctx, row); err != nil {
			return err
		}
		b.recorded = true
	}
	b.sb = next
	switch c.StateID {
	case "":
	case "-":
		b.stateID = ""
	default:
		b.stateID = c.StateID
	}
	h.meter.moved(c.To)
	h.events.poke()
	return nil
}

// undo is the list of steps that take back a half-made thing.
type undo struct{ steps []func(context.Context) error }

func (u *undo) add(f func(context.Context) error) { u.steps = append(u.steps, f) }

// run takes everything back, last step first, whatever became of the caller.
func (u *undo) run(ctx context.Context, note func(error)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	for _, step := range slices.Backward(u.steps) {
		if err := step(ctx); err != nil {
			note(err)
		}
	}
}
