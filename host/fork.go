package host

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// MaxForks bounds the copies of one call.
const MaxForks = 1000

// Fork makes live copies of a sandbox: each has its memory, its processes and its
// files, and an identity, a host name and randomness of its own. The sandbox goes
// on; one that sleeps is not woken. All or nothing: after an error there is no
// copy.
//
// Of spec, the environment is added to what the sandbox has; limits and labels
// that it leaves out are the sandbox's. The disk is what it was.
func (h *Host) Fork(ctx context.Context, who Who, id string, count int, spec arenero.Spec) ([]arenero.Sandbox, error) {
	const op = "fork sandbox"
	if count < 1 || count > MaxForks {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "count is %d, must be between 1 and %d", count, MaxForks)
	}
	parent, err := h.own(ctx, who, id, ScopeRun, op)
	if err != nil {
		return nil, err
	}
	spec, err = h.forkSpec(parent.sandbox(), spec)
	if err != nil {
		return nil, err
	}
	state := "fork-" + randomText(26)
	parent.turn.Lock()
	_, err = h.keep(ctx, parent, state, op)
	parent.turn.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := h.Images.Drop(state); err != nil {
			h.log.Error("drop state of a fork", "id", id, "err", err)
		}
	}()
	from, err := h.kept(ctx, spec.Engine, state, op, id)
	if err != nil {
		return nil, err
	}
	from.from = "fork"
	if err := h.trust.check(from.dir, true); err != nil {
		return nil, err
	}
	return h.copies(ctx, who, spec, from, id, count)
}

func (h *Host) forkSpec(parent arenero.Sandbox, spec arenero.Spec) (arenero.Spec, error) {
	spec.Image, spec.Snapshot, spec.Engine = "", "", parent.Engine
	inherit(&spec, parent.Limits, parent.Labels)
	if err := withVolumes(&spec, parent.Volumes, "fork sandbox"); err != nil {
		return spec, err
	}
	orDefault(&spec.Lifetime, time.Duration(parent.Lifetime))
	orDefault(&spec.OnTimeout, parent.OnTimeout)
	if spec.Idle == 0 {
		spec.Idle = time.Duration(parent.Idle)
		if parent.Idle == 0 {
			spec.Idle = -1
		}
	}
	return h.complete(spec)
}

// copies makes the forks, as many at once as there are processors.
func (h *Host) copies(ctx context.Context, who Who, spec arenero.Spec, from origin, parent string, count int) ([]arenero.Sandbox, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	made := make([]*box, count)
	errs := make([]error, count)
	next := make(chan int)
	var all sync.WaitGroup
	for range min(count, max(2, runtime.NumCPU())) {
		all.Go(func() {
			for i := range next {
				if made[i], errs[i] = h.make(ctx, who, spec, from, lineage{parent: parent}); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	for i := range count {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	all.Wait()
	if err := worst(errs, ctx.Err()); err != nil {
		for _, b := range made {
			if b != nil {
				h.endSoon(ctx, b, "another copy of the same fork could not be made", arenero.Cancelled)
			}
		}
		return nil, err
	}
	out := make([]arenero.Sandbox, count)
	for i, b := range made {
		out[i] = b.sandbox()
	}
	return out, nil
}

// worst picks the error that says why: the others were cancelled because of it.
func worst(errs []error, ctxErr error) error {
	for _, err := range errs {
		if err != nil && arenero.CodeOf(err) != arenero.Canceled {
			return err
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if errors.Is(ctxErr, context.Canceled) {
		return arenero.Errorf(arenero.Canceled, "fork sandbox", "", "the caller went away")
	}
	return nil
}
