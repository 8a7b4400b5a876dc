package host

import (
	"context"
	"slices"
	"time"

	"github.com/arenero/arenero"
)

// atRest is how much of a processor a sandbox may use and still count as idle:
// the timers of an interpreter that waits for work.
const atRest = 0.02

// restFor is over how long that is measured.
const restFor = 3 * time.Second

// reap starts what is due: the end of every sandbox whose time is up, and the
// sleep of those that nobody uses.
func (h *Host) reap(ctx context.Context) {
	now := h.now()
	var paused []sleeper
	for _, b := range h.held() {
		b.mu.Lock()
		sb, active, used, slept := b.sb, b.active, b.used, b.slept
		b.mu.Unlock()
		switch {
		case sb.State == arenero.Creating:
		case sb.State == arenero.Killing, sb.State == arenero.Failed:
			// An earlier teardown did not end well, or is under way; try again.
			h.endSoon(ctx, b, "", "")
		case sb.State == arenero.Paused:
			if h.MaxSleep > 0 && now.Sub(slept) > h.MaxSleep {
				h.endSoon(ctx, b, "it slept for "+h.MaxSleep.String(), arenero.TimedOut)
			} else {
				paused = append(paused, sleeper{b, slept})
			}
		case sb.State != arenero.Running:
		case !sb.Ends.IsZero() && now.After(sb.Ends) && sb.OnTimeout == arenero.PauseOnTimeout:
			h.sleepSoon(ctx, b, "its lifetime was over")
		case !sb.Ends.IsZero() && now.After(sb.Ends):
			h.endSoon(ctx, b, "its lifetime was over", arenero.TimedOut)
		case sb.Idle > 0 && active == 0 && now.Sub(used) > time.Duration(sb.Idle) && h.rests(ctx, b, now):
			h.sleepSoon(ctx, b, "nobody used it for "+time.Duration(sb.Idle).String())
		}
	}
	h.deepen(ctx, paused, now)
}

// rests tells idleness from a job that works without requests, by the processor
// time the sandbox uses. It needs two looks.
func (h *Host) rests(ctx context.Context, b *box, now time.Time) bool {
	y := b.at()
	if y == nil {
		return false
	}
	u, err := y.inst.Usage(ctx)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.cpu
	if before.at.IsZero() || now.Sub(before.at) > 2*restFor || before.at.Before(b.used) {
		b.cpu = sample{now, u.CPU}
		return false
	}
	passed := now.Sub(before.at)
	if passed < restFor {
		return false
	}
	b.cpu = sample{now, u.CPU}
	if float64(u.CPU-before.cpu) < atRest*float64(passed) {
		return true
	}
	b.used = now // it works: that counts as use
	return false
}

// sleepSoon pauses a sandbox without waiting for it; one that can not be paused
// is ended, as its time is over.
func (h *Host) sleepSoon(ctx context.Context, b *box, reason string) {
	if !b.turn.TryLock() {
		return // somebody is at it
	}
	started := h.spawn(func() {
		defer b.turn.Unlock()
		if b.state() != arenero.Running {
			return
		}
		err := h.pause(ctx, b, reason)
		if arenero.CodeOf(err) == arenero.Unavailable {
			err = h.end(ctx, b, reason, arenero.TimedOut)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Error("put sandbox to sleep", "id", b.id(), "err", err)
		}
	})
	if !started {
		b.turn.Unlock()
	}
}

// A sleeper is a sandbox that is paused since a time.
type sleeper struct {
	box   *box
	since time.Time
}

// deepen writes paused sandboxes to disk: those that slept for long, and, when
// memory is short, the one that slept longest. One at a time.
func (h *Host) deepen(ctx context.Context, paused []sleeper, now time.Time) {
	if len(paused) == 0 || h.deepening.Load() {
		return
	}
	slices.SortFunc(paused, func(a, b sleeper) int { return a.since.Compare(b.since) })
	b, since := paused[0].box, paused[0].since
	total, free := memory()
	short := total > 0 && free < total/8
	if !short && (h.HibernateAfter < 0 || now.Sub(since) < h.HibernateAfter) {
		return
	}
	if !b.turn.TryLock() {
		return
	}
	h.deepening.Store(true)
	started := h.spawn(func() {
		defer h.deepening.Store(false)
		defer b.turn.Unlock()
		if b.state() != arenero.Paused {
			return
		}
		b.mu.Lock()
		reason := b.sb.Reason
		b.mu.Unlock()
		if err := h.hibernate(ctx, b, reason); err != nil && ctx.Err() == nil {
			b.mu.Lock()
			b.slept = h.now() // not again at once
			b.mu.Unlock()
			h.log.Warn("hibernate sandbox", "id", b.id(), "err", err)
		}
	})
	if !started {
		h.deepening.Store(false)
		b.turn.Unlock()
	}
}
