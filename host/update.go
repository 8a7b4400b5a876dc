package host

import (
	"context"
	"time"

	"github.com/arenero/arenero"
)

// Update changes a sandbox while it lives: its times, its labels, and of its
// limits the processors and the memory; how long a run may take and how much of
// its output is kept hold from the next run on. The disk, and the limits that the
// guest agent enforces, are given when a sandbox is made and stay.
func (h *Host) Update(ctx context.Context, who Who, id string, p arenero.Patch) (arenero.Sandbox, error) {
	const op = "update sandbox"
	b, err := h.own(ctx, who, id, ScopeRun, op)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	was := b.sandbox()
	if was.State.Ended() || was.State == arenero.Killing {
		return was, notRunning(op, was)
	}
	next, err := h.patched(was, p)
	if err != nil {
		return was, err
	}
	if next.Limits != was.Limits {
		if err := h.relimit(ctx, who, b, was.Limits, next.Limits); err != nil {
			return was, err
		}
	}
	if err := h.store.EditSandbox(ctx, next); err != nil {
		return was, err
	}
	b.mu.Lock()
	b.sb.Limits, b.sb.Labels, b.sb.Ends = next.Limits, next.Labels, next.Ends
	b.sb.Lifetime, b.sb.Idle, b.sb.OnTimeout = next.Lifetime, next.Idle, next.OnTimeout
	b.used = h.now()
	b.mu.Unlock()
	h.tell(next, "update", nil)
	return next, nil
}

// patched returns what a sandbox is to be, checked.
func (h *Host) patched(sb arenero.Sandbox, p arenero.Patch) (arenero.Sandbox, error) {
	spec := arenero.Spec{
		Engine: sb.Engine, Limits: sb.Limits, Labels: sb.Labels, Lifetime: time.Duration(sb.Lifetime),
		Idle: time.Duration(sb.Idle), OnTimeout: sb.OnTimeout,
	}
	if sb.Idle == 0 {
		spec.Idle = -1
	}
	if p.Lifetime != nil {
		spec.Lifetime = *p.Lifetime
	}
	if p.Idle != nil {
		spec.Idle = *p.Idle
	}
	if p.OnTimeout != nil {
		spec.OnTimeout = *p.OnTimeout
	}
	if p.Labels != nil {
		spec.Labels = p.Labels
	}
	if l := p.Limits; l != nil {
		if l.Disk != 0 && l.Disk != sb.Limits.Disk || l.Processes != 0 && l.Processes != sb.Limits.Processes ||
			l.OpenFiles != 0 && l.OpenFiles != sb.Limits.OpenFiles {
			return sb, arenero.Errorf(arenero.Invalid, "update sandbox", sb.ID, "disk, processes and open files can not change while it lives").
				WithHint("make a new sandbox, or fork this one")
		}
		spec.Limits = *l
		inherit(&spec, sb.Limits, spec.Labels)
	}
	spec, err := h.complete(spec)
	if err != nil {
		return sb, err
	}
	if p.Lifetime != nil {
		sb.Lifetime, sb.Ends = arenero.Seconds(spec.Lifetime), h.now().Add(spec.Lifetime)
	}
	sb.Idle, sb.OnTimeout = arenero.Seconds(max(spec.Idle, 0)), spec.OnTimeout
	sb.Labels, sb.Limits = spec.Labels, spec.Limits
	return sb, nil
}

// relimit gives a running box other limits; one that sleeps on disk gets them
// when it wakes.
func (h *Host) relimit(ctx context.Context, who Who, b *box, was, next arenero.Limits) error {
	const op = "update sandbox"
	if err := h.possible(next); err != nil {
		return err
	}
	asks := b.sandbox()
	asks.Limits = next
	if err := h.bounded(ctx, who, asks); err != nil {
		return err
	}
	y := b.at()
	if y == nil || was.CPUs == next.CPUs && was.Memory == next.Memory {
		return nil
	}
	u, ok := y.inst.(arenero.Updater)
	if !ok {
		return arenero.Errorf(arenero.Unavailable, op, b.id(), "engine %s can not change limits", b.engine)
	}
	return u.Update(ctx, next)
}
