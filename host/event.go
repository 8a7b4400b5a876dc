package host

import (
	"context"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// maxEvents bounds what waits to be written; beyond it, events of runs are
// counted and lost. Changes of state are written with the state and never are.
const maxEvents = 10_000

// events gathers what happens in sandboxes and tells those who follow.
type events struct {
	mu      sync.Mutex
	pending []arenero.Event
	lost    int
	news    chan struct{} // closed when there is something new
}

// poke tells the followers to look again.
func (e *events) poke() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.news != nil {
		close(e.news)
		e.news = nil
	}
}

// next returns a channel that is closed at the next poke.
func (e *events) next() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.news == nil {
		e.news = make(chan struct{})
	}
	return e.news
}

// tell notes an event; it is written soon, together with others.
func (h *Host) tell(sb arenero.Sandbox, kind string, detail map[string]string) {
	h.events.mu.Lock()
	defer h.events.mu.Unlock()
	if len(h.events.pending) >= maxEvents {
		h.events.lost++
		return
	}
	h.events.pending = append(h.events.pending, arenero.Event{Sandbox: sb.ID, At: h.now(), Kind: kind, Detail: detail})
}

// writeEvents writes what was told since the last time.
func (h *Host) writeEvents(ctx context.Context) {
	h.events.mu.Lock()
	batch, lost := h.events.pending, h.events.lost
	h.events.pending, h.events.lost = nil, 0
	h.events.mu.Unlock()
	if lost > 0 {
		h.log.Warn("events of runs were lost", "count", lost)
	}
	if len(batch) == 0 {
		return
	}
	if err := h.store.AddEvents(ctx, batch); err != nil {
		h.log.Error("write events", "count", len(batch), "err", err)
		return
	}
	h.events.poke()
}

// eventLoop writes events every now and then until ctx ends, and then the rest.
func (h *Host) eventLoop(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.writeEvents(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			h.writeEvents(last)
			return
		}
	}
}

// Events returns what happened after a sequence number, at most limit (0 is 100)
// of it, oldest first; sandbox "" is all of the tenant's. With wait it blocks
// until there is something or ctx ends; then it returns nothing and no error.
func (h *Host) Events(ctx context.Context, who Who, sandbox string, after int64, limit int, wait bool) ([]arenero.Event, error) {
	const op = "read events"
	if err := h.allow(ctx, who, ScopeRead, op); err != nil {
		return nil, err
	}
	if sandbox != "" {
		if _, err := h.lookup(ctx, who, sandbox, op); err != nil {
			return nil, err
		}
	}
	orDefault(&limit, 100)
	if limit < 1 || limit > 1000 {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "limit is %d, must be between 1 and 1000", limit)
	}
	for {
		news := h.events.next() // before reading: nothing falls in between
		all, err := h.store.Events(ctx, who.Tenant, sandbox, after, limit)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if len(all) > 0 || !wait || ctx.Err() != nil {
			return all, nil //nolint:nilerr // who waits no longer gets what there is
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, nil
		}
	}
}
