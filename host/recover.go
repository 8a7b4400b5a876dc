package host

import (
	"context"
	"sync"
	"time"

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
		mine[sb.Box] = true
	}
	h.sweepStates(ctx, known)
	h.sweepVolumes(ctx)
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
			if !mine[id] {
				do(func() { h.sweep(ctx, engine, id) })
			}
		}
	}
	// All of them are known before any is taken up: who asks for one waits for it.
	type find struct {
		b   *box
		row store.Row
	}
	var found []find
	for _, row := range known {
		if b := h.register(ctx, row); b != nil {
			found = append(found, find{b, row})
		}
	}
	h.known.Do(func() { close(h.ready) })
	for _, f := range found {
		do(func() { h.takeUp(ctx, f.b, f.row) })
	}
	all.Wait()
	h.restVolumes(ctx)
	return ctx.Err()
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

// Ready is closed when every sandbox of an earlier daemon is known here, though
// perhaps not taken up yet: from then on the doors may open.
func (h *Host) Ready() <-chan struct{} { return h.ready }

// register makes a sandbox of an earlier daemon known; whoever takes it up has its
// turn from here. nil when it is known already.
func (h *Host) register(ctx context.Context, row store.Row) *box {
	b := newBox(ctx, row.Sandbox, h.now())
	b.recorded, b.digest, b.stateID, b.slept = true, row.Digest, row.StateID, h.now()
	close(b.made)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boxes[row.ID] != nil {
		return nil
	}
	b.turn.Lock()
	h.boxes[row.ID] = b
	return b
}

// takeUp makes a sandbox of an earlier daemon ours, or ends it.
func (h *Host) takeUp(ctx context.Context, b *box, row store.Row) {
	defer b.turn.Unlock()
	reason, gone := h.reattach(ctx, b, row)
	if ctx.Err() != nil { // we are being stopped: the next one tries
		if y := b.at(); y != nil {
			y.leave()
			y.part()
		}
		h.drop(b)
		return
	}
	if reason == "" {
		h.log.Info("took up sandbox", "id", row.ID, "state", string(b.state()))
		return
	}
	if gone || row.State != arenero.Killing {
		if err := h.move(ctx, b, store.Change{To: arenero.Failed, Reason: reason}); err != nil {
			h.log.Error("record lost sandbox", "id", row.ID, "err", err)
		}
	}
	h.log.Warn("could not take up sandbox", "id", row.ID, "reason", reason)
	if err := h.end(ctx, b, reason, ""); err != nil {
		h.log.Error("end lost sandbox", "id", row.ID, "err", err)
	}
}

// reattach returns why a sandbox can not go on, "" when it does. gone says that
// its engine holds nothing of it.
func (h *Host) reattach(ctx context.Context, b *box, row store.Row) (reason string, gone bool) {
	engine := h.Engines[row.Engine]
	if engine == nil {
		return "this daemon has no engine " + row.Engine, true
	}
	if h.sleptOnDisk(ctx, b, row, engine) {
		return "", false
	}
	inst, err := engine.Open(ctx, row.Box)
	if arenero.CodeOf(err) == arenero.NotFound {
		return "its box was gone when the daemon came back", true
	}
	if err != nil {
		return "its box could not be opened: " + clip(printable(err.Error()), 500), false
	}
	y := newBody(row.Box, inst, nil)
	b.settle(y)
	over := !row.Ends.IsZero() && h.now().After(row.Ends) && row.OnTimeout == arenero.KillOnTimeout
	switch row.State {
	case arenero.Creating, arenero.Killing:
		return "the daemon stopped while it was " + string(row.State), false
	case arenero.Paused:
		if !h.follow(b, y) {
			return "the daemon is stopping", false
		}
		return "", false
	case arenero.Running:
		if over {
			return "its lifetime was over", false
		}
	}
	guest, err := h.greetLost(ctx, inst, row.State)
	if err != nil {
		return "its guest did not answer: " + clip(printable(h.whyMute(ctx, inst, err).Error()), 500), false
	}
	y.guest = guest
	if row.State != arenero.Running {
		if err := h.move(ctx, b, store.Change{To: arenero.Running, StateID: "-"}); err != nil {
			return "its state could not be recorded: " + clip(printable(err.Error()), 500), false
		}
	}
	if !h.follow(b, y) {
		return "the daemon is stopping", false
	}
	return "", false
}

// greetLost greets the guest of a box that an earlier daemon left. Whatever that
// daemon was doing to it had not been done, but perhaps begun: then it stands
// still. A box that does not must not be told to go on.
func (h *Host) greetLost(ctx context.Context, inst arenero.Instance, was arenero.State) (arenero.Guest, error) {
	p, ok := inst.(arenero.Pauser)
	if !ok || was == arenero.Running {
		return greet(ctx, inst, greetAgain)
	}
	guest, err := greet(ctx, inst, 2*time.Second)
	if err == nil {
		return guest, nil
	}
	if err := p.Resume(ctx); err != nil {
		return nil, err
	}
	return greet(ctx, inst, greetAgain)
}

// sleptOnDisk settles a sandbox whose state is whole on disk: it sleeps there,
// and what may be left of its box goes.
func (h *Host) sleptOnDisk(ctx context.Context, b *box, row store.Row, engine arenero.Engine) bool {
	switch row.State {
	case arenero.Hibernated:
		return true // whether it can be restored is said when it is asked for
	case arenero.Hibernating, arenero.Resuming:
	default:
		return false
	}
	if row.StateID == "" {
		return false
	}
	if _, err := h.Images.Kept(row.StateID); err != nil {
		return false
	}
	if inst, err := engine.Open(ctx, row.Box); err == nil {
		if err := inst.Destroy(ctx); err != nil {
			h.log.Error("clear up after hibernation", "id", row.ID, "err", err)
		}
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Hibernated}); err != nil {
		h.log.Error("record sandbox that sleeps", "id", row.ID, "err", err)
		return false
	}
	return true
}

// sweepStates removes the states on disk that no record speaks of: those of forks
// and hibernations that a crash cut off.
func (h *Host) sweepStates(ctx context.Context, known []store.Row) {
	ids, err := h.Images.KeptIDs()
	if err != nil {
		h.log.Error("list states", "err", err)
		return
	}
	mine := map[string]bool{}
	for _, r := range known {
		mine[r.StateID] = true
	}
	for _, id := range ids {
		if mine[id] {
			continue
		}
		if _, err := h.store.Snapshot(ctx, id); arenero.CodeOf(err) != arenero.NotFound {
			continue
		}
		if err := h.Images.Drop(id); err != nil {
			h.log.Error("sweep state", "id", id, "err", err)
			continue
		}
		h.log.Info("swept a state that nobody owns", "id", id)
	}
}
