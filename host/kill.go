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
	b.ending.Lock()
	defer b.ending.Unlock()
	return h.end(ctx, b, "it was asked for", arenero.Cancelled)
}

// end takes a box down, whatever state it is in; the caller holds b.ending. On
// an error the box is kept and the reaper tries again.
func (h *Host) end(ctx context.Context, b *box, reason string, cause arenero.ExitReason) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	h.mu.Lock()
	_, held := h.boxes[b.sb.ID]
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
	guest, inst := b.guest, b.inst
	b.guest = nil
	b.mu.Unlock()
	if guest != nil {
		if err := guest.Close(); err != nil {
			h.log.Debug("close wire", "id", b.sb.ID, "err", err)
		}
	}
	if inst != nil {
		if err := inst.Destroy(ctx); err != nil {
			return arenero.Errorf(arenero.CodeOf(err), "end sandbox", b.sb.ID, "%w", err)
		}
	}
	b.ended(arenero.Exit{Destroyed: true, Reason: reason})
	if !failed {
		c := store.Change{To: arenero.Killed}
		if b.sandbox().Reason == "" { // an earlier daemon began and did not say why
			c.Reason = reason
		}
		if err := h.move(ctx, b, c); err != nil {
			return err
		}
	}
	h.mu.Lock()
	delete(h.boxes, b.sb.ID)
	h.mu.Unlock()
	return nil
}

// watch waits for a box to end by itself and records why.
func (h *Host) watch(ctx context.Context, b *box, inst arenero.Instance) {
	exit, err := inst.Wait(ctx)
	if err != nil || exit.Destroyed {
		return // let go of, or ended by us: end() writes the record
	}
	b.ended(exit)
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
	b.ending.Lock()
	defer b.ending.Unlock()
	rec, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	if err := h.move(rec, b, store.Change{To: arenero.Failed, Reason: reason, ExitCause: cause}); err != nil {
		return // it was being killed when it died
	}
	h.log.Warn("sandbox ended by itself", "id", b.sb.ID, "code", exit.Code, "oom", exit.OutOfMemory, "reason", printable(reason))
	if err := h.end(rec, b, "", ""); err != nil {
		h.log.Error("sweep sandbox", "id", b.sb.ID, "err", err)
	}
}
