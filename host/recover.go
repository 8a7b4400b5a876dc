package host

import (
	"context"
	"sync"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// Recover compares what the store believes with what the engines hold: it takes
// up running sandboxes with their guests, ends what was half made or half ended,
// and sweeps boxes that nobody owns. Call it once, before the doors open; Run
// does.
func (h *Host) Recover(ctx context.Context) error {
	var open []arenero.State
	for _, s := range arenero.States() {
		if !s.Ended() {
			open = append(open, s)
		}
	}
	known, err := h.store.Sandboxes(ctx, store.Filter{States: open})
	if err != nil {
		return err
	}
	mine := make(map[string]bool, len(known))
	for _, sb := range known {
		mine[sb.ID] = true
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	do := func(f func()) {
		slots <- struct{}{}
		all.Go(func() { defer func() { <-slots }(); f() })
	}
	for name, engine := range h.Engines {
		ids, err := engine.List(ctx)
		if err != nil {
			h.log.Error("list boxes", "engine", name, "err", err)
			continue
		}
		for _, id := range ids {
			if !mine[id] && !h.holds(id) {
				do(func() { h.sweep(ctx, engine, id) })
			}
		}
	}
	for _, sb := range known {
		if !h.holds(sb.ID) {
			do(func() { h.takeUp(ctx, sb) })
		}
	}
	all.Wait()
	return ctx.Err()
}

func (h *Host) holds(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[id] != nil
}

// sweep destroys a box that no record speaks of.
func (h *Host) sweep(ctx context.Context, engine arenero.Engine, id string) {
	inst, err := engine.Open(ctx, id)
	if err == nil {
		err = inst.Destroy(ctx)
	}
	if err != nil && arenero.CodeOf(err) != arenero.NotFound {
		h.log.Error("sweep box", "engine", engine.Name(), "id", id, "err", err)
		return
	}
	h.log.Info("swept a box that nobody owns", "engine", engine.Name(), "id", id)
}

// takeUp makes a sandbox of an earlier daemon ours, or ends it.
func (h *Host) takeUp(ctx context.Context, sb arenero.Sandbox) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := newBox(sb, stop, h.now())
	close(b.made)
	h.mu.Lock()
	h.boxes[sb.ID] = b
	h.mu.Unlock()
	reason, gone := h.reattach(ctx, life, b)
	if reason == "" {
		h.log.Info("took up sandbox", "id", sb.ID)
		return
	}
	b.ending.Lock()
	defer b.ending.Unlock()
	if gone || sb.State != arenero.Killing {
		if err := h.move(ctx, b, store.Change{To: arenero.Failed, Reason: reason}); err != nil {
			h.log.Error("record lost sandbox", "id", sb.ID, "err", err)
		}
	}
	h.log.Warn("could not take up sandbox", "id", sb.ID, "reason", reason)
	if err := h.end(ctx, b, reason, ""); err != nil {
		h.log.Error("end lost sandbox", "id", sb.ID, "err", err)
	}
}

// reattach returns why a sandbox can not go on, "" when it does. gone says that
// its engine holds nothing of it.
func (h *Host) reattach(ctx, life context.Context, b *box) (reason string, gone bool) {
	engine := h.Engines[b.sb.Engine]
	if engine == nil {
		return "this daemon has no engine " + b.sb.Engine, true
	}
	inst, err := engine.Open(ctx, b.sb.ID)
	if arenero.CodeOf(err) == arenero.NotFound {
		return "its box was gone when the daemon came back", true
	}
	if err != nil {
		return "its box could not be opened: " + clip(printable(err.Error()), 500), false
	}
	b.mu.Lock()
	b.inst = inst
	b.mu.Unlock()
	if b.sb.State != arenero.Running {
		return "the daemon stopped while it was " + string(b.sb.State), false
	}
	if !b.sb.Ends.IsZero() && h.now().After(b.sb.Ends) {
		return "its lifetime was over", false
	}
	guest, err := greet(ctx, inst, greetAgain)
	if err != nil {
		return "its guest did not answer: " + clip(printable(h.whyMute(ctx, inst, err).Error()), 500), false
	}
	b.mu.Lock()
	b.guest = guest
	b.mu.Unlock()
	if !h.spawn(func() { h.watch(life, b, inst) }) {
		return "the daemon is stopping", false
	}
	return "", false
}
