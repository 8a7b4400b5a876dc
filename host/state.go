package host

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// A box is a sandbox that this host holds now: what the store knows of it, and
// its running parts.
type box struct {
	ending sync.Mutex // held by the one that takes it down

	mu       sync.Mutex
	sb       arenero.Sandbox
	inst     arenero.Instance // nil until the engine made it
	guest    arenero.Guest    // nil until greeted
	suspect  bool             // the wire failed a call: greet again before the next
	active   int              // streams and calls under way
	used     time.Time        // when the last one ended
	image    arenero.Image
	stop     context.CancelFunc // ends its making and its watcher
	made     chan struct{}      // closed when Create is through with it
	gone     chan struct{}      // closed when the box has ended; exit is set then
	exit     arenero.Exit
	goneOnce sync.Once
	queues   map[string]*queue // of cells, by kernel
	kernels  map[string]bool   // that were seen to run
}

func newBox(sb arenero.Sandbox, stop context.CancelFunc, now time.Time) *box {
	return &box{sb: sb, stop: stop, used: now, made: make(chan struct{}), gone: make(chan struct{})}
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

// ended records how the box ended; only the first report counts.
func (b *box) ended(e arenero.Exit) {
	b.goneOnce.Do(func() {
		b.mu.Lock()
		b.exit = e
		b.mu.Unlock()
		close(b.gone)
	})
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
// allowed moves, writes to the store and then changes what readers see.
// [arenero.Conflict] for a move that is not allowed.
func (h *Host) move(ctx context.Context, b *box, c store.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.sb.State
	if !arenero.CanMove(from, c.To) {
		return arenero.Errorf(arenero.Conflict, "change state", b.sb.ID, "it is %s and can not become %s", from, c.To)
	}
	c.At = h.now()
	if err := h.store.MoveSandbox(ctx, b.sb.ID, from, c); err != nil {
		return err
	}
	b.sb.State = c.To
	if c.Reason != "" {
		b.sb.Reason = c.Reason
	}
	if c.ExitCause != "" {
		b.sb.ExitCause = c.ExitCause
	}
	if c.From != "" {
		b.sb.From = c.From
	}
	if c.FromWhy != "" {
		b.sb.FromWhy = c.FromWhy
	}
	if !c.Ends.IsZero() {
		b.sb.Ends = c.Ends
	}
	h.meter.moved(c.To)
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
