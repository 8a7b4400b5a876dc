package host

import (
	"context"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// Kill ends a sandbox and all that runs in it; nothing of it is left when it
// returns nil. It is idempotent: a sandbox that has ended is no error.
func (h *Host) Kill(ctx context.Context, who Who, id string) error {
	const op = "kill sandbox"
	if err := h.allow(ctx, who, ScopeRun, op); err != nil {
		return err
	}
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b == nil || b.sandbox().Tenant != who.Tenant {
		_, err := h.lookup(ctx, who, id, op)
		return err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	return h.end(ctx, b, "it was asked for", arenero.Cancelled)
}

// end takes a box down, whatever state it is in; the caller holds b.turn. On
// an error the box is kept and the reaper tries again.
func (h *Host) end(ctx context.Context, b *box, reason string, cause arenero.ExitReason) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	h.mu.Lock()
	_, held := h.boxes[b.id()]
	h.mu.Unlock()
	if !held {
		return nil // somebody was faster
	}
	failed := b.state() == arenero.Failed
	if !failed && b.state() != arenero.Killing {
		if err := h.move(ctx, b, store.Change{To: arenero.Killing, Reason: reason, ExitCause: cause}); err != nil {
			return err
		}
	}
	b.stop()
	<-b.made // a Create under way sees that it was cut off and takes back what it made
	b.mu.Lock()
	y, state := b.body, b.stateID
	b.mu.Unlock()
	if y != nil {
		y.leave()
		y.part()
		if err := y.inst.Destroy(ctx); err != nil {
			return arenero.Errorf(arenero.CodeOf(err), "end sandbox", b.id(), "%w", err)
		}
		y.ended(arenero.Exit{Destroyed: true, Reason: reason})
	}
	if state != "" {
		if err := h.Images.Drop(state); err != nil {
			return err
		}
	}
	if !failed {
		c := store.Change{To: arenero.Killed}
		if b.sandbox().Reason == "" { // an earlier daemon began and did not say why
			c.Reason = reason
		}
		if err := h.move(ctx, b, c); err != nil {
			return err
		}
	}
	h.drop(b)
	h.letGo(ctx, b)
	return nil
}

// watch waits for a body to end by itself and records why.
func (h *Host) watch(ctx context.Context, b *box, y *body) {
	exit, err := y.inst.Wait(ctx)
	if err != nil || exit.Destroyed {
		return // let go of, or ended by us: end() writes the record
	}
	y.ended(exit)
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.at() == y && ctx.Err() == nil {
		h.lost(ctx, b, y, exit)
	}
}

// lost records that a sandbox ended by itself, and clears up; the caller has its
// turn.
func (h *Host) lost(ctx context.Context, b *box, y *body, exit arenero.Exit) {
	y.ended(exit)
	cause, reason := arenero.WasKilled, exit.Reason
	if exit.OutOfMemory {
		cause = arenero.OutOfMemory
		if reason == "" {
			reason = "out of memory"
		}
	}
	if reason == "" {
		reason = "the box ended by itself"
	}
	rec, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	e := arenero.Event{Kind: "state", Detail: map[string]string{"reason": reason, "exit_reason": string(cause)}}
	if err := h.move(rec, b, store.Change{To: arenero.Failed, Reason: reason, ExitCause: cause, Event: &e}); err != nil {
		return // it was being killed when it died
	}
	h.log.Warn("sandbox ended by itself", "id", b.id(), "code", exit.Code, "oom", exit.OutOfMemory, "reason", printable(reason))
	if err := h.end(rec, b, "", ""); err != nil {
		h.log.Error("sweep sandbox", "id", b.id(), "err", err)
	}
}
