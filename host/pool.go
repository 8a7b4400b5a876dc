package host

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// A size is a class of sandboxes that can stand in for one another: the rest of
// the limits is given when one is handed out.
type size struct {
	engine string
	image  string // digest
	cpus   float64
	memory int64
	disk   int64
}

// Bounds of what is kept ready without anybody having asked for it.
const (
	poolShare   = 4                // of the free memory: a quarter at most
	poolForgets = 10 * time.Minute // a size that nobody asked for so long gets no more
	maxPool     = 1000
)

// pools keeps sandboxes of the sizes that are asked for restored ahead of demand,
// and boxes prepared for what is not.
type pools struct {
	mu      sync.Mutex
	classes map[size]*class
	news    chan struct{} // poked when something was taken or set
	spare   []*spare
	set     []arenero.Pool // as asked for, by the name of the image
	on      bool           // Run is running: something refills
}

// A class is the pool of one size.
type class struct {
	size   size
	from   origin // what members are made of
	min    int    // as set; -1 when only demand asks for it
	max    int
	ready  []*member
	making int
	hits   int64
	misses int64
	asked  time.Time // last
	rate   float64   // creates a second, smoothed
	rated  time.Time
	cost   time.Duration // of making one, smoothed
	failed time.Time     // when making one failed last
	why    string        // why
}

// A member is a restored sandbox that nobody owns yet.
type member struct {
	body *body
	dir  string // the snapshot it was made of
}

// A spare is a prepared box in which nothing runs yet.
type spare struct {
	size size
	box  arenero.Prepared
}

func classOf(from origin, l arenero.Limits) size {
	return size{from.engine.Name(), from.image.Digest, l.CPUs, l.Memory, l.Disk}
}

// claim gives a sandbox a body out of the pool, if there is one that fits.
func (h *Host) claim(ctx context.Context, b *box, from origin, spec arenero.Spec) bool {
	if from.strict || from.dir == "" {
		return false
	}
	for {
		m := h.pools.take(h, from, spec.Limits)
		if m == nil {
			return false
		}
		err := m.body.guest.Wake(ctx, h.identity(b, from, spec.Env))
		if u, ok := m.body.inst.(arenero.Updater); ok && err == nil {
			err = u.Update(ctx, spec.Limits)
		}
		if err == nil {
			m.body.leave()
			b.settle(m.body)
			return true
		}
		h.log.Warn("pool member could not be handed out", "box", m.body.id, "err", err)
		h.discard(ctx, m)
		if ctx.Err() != nil {
			return false
		}
	}
}

// take hands out a member that lives, and notes that one was asked for.
func (p *pools) take(h *Host, from origin, l arenero.Limits) *member {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return nil
	}
	c := p.class(h, from, classOf(from, l))
	now := time.Now()
	c.ask(now)
	defer p.poke()
	for len(c.ready) > 0 {
		m := c.ready[0]
		c.ready = c.ready[1:]
		select {
		case <-m.body.gone:
			continue // its watcher clears up
		default:
		}
		if m.dir != from.dir { // the image was warmed again meanwhile
			h.spawn(func() { h.discard(context.Background(), m) })
			continue
		}
		c.hits++
		return m
	}
	c.misses++
	return nil
}

// class finds the pool of a size, or begins one.
func (p *pools) class(h *Host, from origin, s size) *class {
	if p.classes == nil {
		p.classes = map[size]*class{}
	}
	c := p.classes[s]
	if c == nil {
		c = &class{size: s, min: -1, max: h.PoolMax, cost: 300 * time.Millisecond}
		p.classes[s] = c
	}
	c.from = from
	return c
}

// ask updates how often members are asked for: an average over about a minute.
func (c *class) ask(now time.Time) {
	c.decay(now)
	c.rate += 1.0 / 60
	c.asked = now
}

func (c *class) decay(now time.Time) {
	if !c.rated.IsZero() {
		c.rate *= math.Exp(-now.Sub(c.rated).Seconds() / 60)
	}
	c.rated = now
}

// target is how many are to be ready: what is asked for in the time that two
// restores take, and one more while the size is in use.
func (c *class) target(now time.Time) int {
	n := 0
	if !c.asked.IsZero() && now.Sub(c.asked) < poolForgets {
		c.decay(now)
		n = 1 + int(math.Ceil(2*c.rate*c.cost.Seconds()))
	}
	return min(max(n, c.min), c.max)
}

func (p *pools) poke() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// whyNone says why a sandbox did not come out of a pool, "" when there are none.
func (p *pools) whyNone() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return ""
	}
	return "the pool was empty"
}

// standby hands out a prepared box of the size.
func (p *pools) standby(from origin, ask arenero.Box) (arenero.Prepared, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(ask.Mounts) > 0 {
		return nil, false
	}
	s := classOf(from, ask.Limits)
	for i, sp := range p.spare {
		if sp.size == s {
			p.spare = slices.Delete(p.spare, i, i+1)
			p.poke()
			return sp.box, true
		}
	}
	return nil, false
}

// yield gives up one ready member, of the pool that has most beyond its minimum;
// false when there is none to give.
func (p *pools) yield() bool {
	p.mu.Lock()
	var most *class
	for _, c := range p.classes {
		if len(c.ready) > 0 && (most == nil || len(c.ready) > len(most.ready)) {
			most = c
		}
	}
	if most == nil {
		p.mu.Unlock()
		return false
	}
	m := most.ready[len(most.ready)-1]
	most.ready = most.ready[:len(most.ready)-1]
	most.failed, most.why = time.Now(), "memory was short"
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), teardown)
	defer cancel()
	m.body.leave()
	m.body.part()
	return m.body.inst.Destroy(ctx) == nil
}

// discard ends a member that is of no use.
func (h *Host) discard(ctx context.Context, m *member) {
	m.body.leave()
	m.body.part()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	if err := m.body.inst.Destroy(end); err != nil {
		h.log.Error("end pool member", "box", m.body.id, "err", err)
	}
}
