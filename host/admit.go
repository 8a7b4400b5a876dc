package host

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/arenero/arenero"
)

// maxWait is how long a create may queue for a place.
const maxWait = 10 * time.Minute

// A place is about what a new sandbox takes of the machine's memory before its
// code has done anything, and reserve what must stay free besides.
const (
	place   = 128 * arenero.MiB
	reserve = 192 * arenero.MiB
)

// gates lets through what fits the machine. Those who wait do so in one line per
// tenant, and the tenants take turns, so that one with a thousand requests does
// not hold up one with a single one.
type gates struct {
	mu      sync.Mutex
	lines   map[string][]*waiter // by tenant, first come first
	order   []string             // the tenants that wait, in turn
	coming  int                  // sandboxes admitted and not made yet
	creates map[string]*rate.Limiter
}

type waiter struct{ call chan struct{} }

// admit keeps the box if it fits this machine and the key's ceilings, or waits
// until it does. From here on it counts, so that two creates can not take the
// same last place. The caller calls leave when the sandbox is made.
func (h *Host) admit(ctx context.Context, who Who, b *box, wait time.Duration) (leave func(), err error) {
	if err := h.possible(b.sb.Limits); err != nil {
		return nil, err
	}
	if err := h.bounded(ctx, who, b.sb); err != nil {
		return nil, err
	}
	if err := h.paced(ctx, who); err != nil {
		return nil, err
	}
	err = h.enter(ctx, who, b)
	if err != nil && wait > 0 && arenero.CodeOf(err) == arenero.Exhausted {
		err = h.stand(ctx, who, b, wait, err)
	}
	if err != nil {
		return nil, err
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			h.queue.mu.Lock()
			h.queue.coming--
			h.queue.mu.Unlock()
			h.queue.poke()
		})
	}, nil
}

// possible refuses what this machine can never hold.
func (h *Host) possible(l arenero.Limits) error {
	const op = "create sandbox"
	if n := runtime.NumCPU(); l.CPUs > float64(n) {
		return arenero.Errorf(arenero.Exhausted, op, "", "it asks for %g cpus, this machine has %d", l.CPUs, n).
			WithHint("ask for at most %d", n)
	}
	if total, _ := memory(); total > 0 && l.Memory > total {
		return arenero.Errorf(arenero.Exhausted, op, "", "it asks for %d MiB memory, this machine has %d", l.Memory/arenero.MiB, total/arenero.MiB).
			WithHint("ask for less memory")
	}
	return nil
}

// bounded refuses what the key may not have.
func (h *Host) bounded(ctx context.Context, who Who, sb arenero.Sandbox) error {
	const op = "check limits"
	ceil, err := h.ceilings(ctx, who)
	if err != nil {
		return err
	}
	l := sb.Limits
	if ceil.Memory > 0 && l.Memory > ceil.Memory || ceil.CPUs > 0 && l.CPUs > ceil.CPUs || ceil.Disk > 0 && l.Disk > ceil.Disk {
		return arenero.Errorf(arenero.Denied, op, "", "it asks for more than this key may have (%s)", l)
	}
	if ceil.Engine != "" && sb.Engine != ceil.Engine {
		return arenero.Errorf(arenero.Denied, op, "", "this key may use the engine %s only", ceil.Engine)
	}
	return nil
}

// paced refuses a key that makes sandboxes faster than it may.
func (h *Host) paced(ctx context.Context, who Who) error {
	const op = "create sandbox"
	ceil, err := h.ceilings(ctx, who)
	if err != nil || ceil.Creates <= 0 {
		return err
	}
	h.queue.mu.Lock()
	if h.queue.creates == nil {
		h.queue.creates = map[string]*rate.Limiter{}
	}
	lim := h.queue.creates[who.Key]
	if lim == nil {
		lim = rate.NewLimiter(rate.Limit(float64(ceil.Creates)/60), ceil.Creates)
		h.queue.creates[who.Key] = lim
	}
	h.queue.mu.Unlock()
	r := lim.Reserve()
	if d := r.Delay(); d > 0 {
		r.Cancel()
		return arenero.Errorf(arenero.Exhausted, op, "", "this key may make %d sandboxes a minute", ceil.Creates).
			WithHint("try again in %v", d.Round(time.Second)).WithWait(d)
	}
	return nil
}

// enter takes a place if there is one now.
func (h *Host) enter(ctx context.Context, who Who, b *box) error {
	const op = "create sandbox"
	ceil, err := h.ceilings(ctx, who)
	if err != nil {
		return err
	}
	if err := h.room(op); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return arenero.Errorf(arenero.Unavailable, op, "", "the daemon is stopping")
	}
	awake, own := 0, 0
	for _, other := range h.boxes {
		if other.state() == arenero.Hibernated {
			continue
		}
		awake++
		if other.tenant == who.Tenant {
			own++
		}
	}
	if awake >= h.MaxSandboxes {
		return arenero.Errorf(arenero.Exhausted, op, "", "%d sandboxes exist, the most this daemon holds", awake).
			WithHint("end some sandboxes, or start the daemon with a higher bound").WithWait(time.Second)
	}
	if ceil.Sandboxes > 0 && own >= ceil.Sandboxes {
		return arenero.Errorf(arenero.Exhausted, op, "", "this key may have %d sandboxes at once", ceil.Sandboxes).
			WithHint("end some of them").WithWait(time.Second)
	}
	h.boxes[b.id()] = b
	h.queue.mu.Lock()
	h.queue.coming++
	h.queue.mu.Unlock()
	return nil
}

// room says whether the memory of the machine holds one more. What is ready in
// the pools is given up before anybody is refused.
func (h *Host) room(op string) error {
	for {
		total, free := memory()
		h.queue.mu.Lock()
		coming := int64(h.queue.coming)
		h.queue.mu.Unlock()
		if total == 0 || free-coming*place >= reserve {
			return nil
		}
		if h.pools.yield() {
			continue
		}
		return arenero.Errorf(arenero.Exhausted, op, "", "only %d MiB of memory are free on this machine", free/arenero.MiB).
			WithHint("end some sandboxes, or try again later").WithWait(2 * time.Second)
	}
}

// stand waits in line for a place, for a time. why is what there was instead.
func (h *Host) stand(ctx context.Context, who Who, b *box, wait time.Duration, why error) error {
	w := &waiter{call: make(chan struct{}, 1)}
	h.queue.join(who.Tenant, w)
	defer func() {
		h.queue.leave(who.Tenant, w)
		h.queue.poke()
	}()
	over := time.NewTimer(wait)
	defer over.Stop()
	again := time.NewTicker(time.Second) // memory is freed by others too
	defer again.Stop()
	for {
		select {
		case <-w.call:
		case <-again.C:
			if !h.queue.first(w) {
				continue
			}
		case <-over.C:
			return why
		case <-ctx.Done():
			return arenero.Errorf(arenero.Canceled, "create sandbox", "", "the caller went away while it waited for a place")
		}
		err := h.enter(ctx, who, b)
		if err == nil || arenero.CodeOf(err) != arenero.Exhausted {
			return err
		}
		why = err
	}
}

func (g *gates) join(tenant string, w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lines == nil {
		g.lines = map[string][]*waiter{}
	}
	if len(g.lines[tenant]) == 0 {
		g.order = append(g.order, tenant)
	}
	g.lines[tenant] = append(g.lines[tenant], w)
}

// leave takes one out of the line; its tenant goes to the end of the turns.
func (g *gates) leave(tenant string, w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line := g.lines[tenant]
	for i, other := range line {
		if other == w {
			line = append(line[:i], line[i+1:]...)
			break
		}
	}
	for i, t := range g.order {
		if t == tenant {
			g.order = append(g.order[:i], g.order[i+1:]...)
			break
		}
	}
	if len(line) == 0 {
		delete(g.lines, tenant)
		return
	}
	g.lines[tenant] = line
	g.order = append(g.order, tenant)
}

func (g *gates) first(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.order) > 0 && g.lines[g.order[0]][0] == w
}

// poke calls the one whose turn it is: something has become free.
func (g *gates) poke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) == 0 {
		return
	}
	select {
	case g.lines[g.order[0]][0].call <- struct{}{}:
	default:
	}
}

// busy reports whether somebody waits for a sandbox to be made right now.
func (g *gates) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.coming > 0 || len(g.order) > 0
}
