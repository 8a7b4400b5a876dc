package host

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// retryPool is how long a pool rests after a member could not be made.
const retryPool = 10 * time.Second

// poolLoop keeps the pools filled until ctx ends, and empties them then. While
// somebody waits for a sandbox, one member at a time is made.
func (h *Host) poolLoop(ctx context.Context) {
	if set, err := h.store.Pools(ctx); err != nil {
		h.log.Error("read pools", "err", err)
	} else {
		h.pools.mu.Lock()
		h.pools.set = set
		h.pools.mu.Unlock()
	}
	h.pools.turn(true)
	var workers sync.WaitGroup
	for i := range runtime.NumCPU() {
		workers.Go(func() { h.refillLoop(ctx, i > 0) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		if n%5 == 0 {
			h.renewPools(ctx)
		}
		h.shrink(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	workers.Wait()
	h.pools.turn(false)
	h.drain(ctx)
}

func (p *pools) turn(on bool) {
	p.mu.Lock()
	p.on = on
	p.mu.Unlock()
}

// renewPools looks up what the names of the pools that were set stand for now:
// an image that was built again gets new members.
func (h *Host) renewPools(ctx context.Context) {
	h.pools.mu.Lock()
	set := slices.Clone(h.pools.set)
	h.pools.mu.Unlock()
	kept := map[size]bool{}
	for _, ask := range set {
		_, from, err := h.originOf(ctx, Local(), arenero.Spec{Image: ask.Image, Limits: arenero.Limits{CPUs: ask.CPUs, Memory: ask.Memory}})
		if err != nil {
			h.log.Warn("keep pool", "image", ask.Image, "err", err)
			continue
		}
		s := size{from.engine.Name(), from.image.Digest, ask.CPUs, ask.Memory, arenero.DefaultLimits().Disk}
		kept[s] = true
		h.pools.mu.Lock()
		c := h.pools.class(h, from, s)
		c.min, c.max = ask.Min, ask.Max
		h.pools.mu.Unlock()
	}
	h.pools.mu.Lock()
	for s, c := range h.pools.classes {
		if c.min >= 0 && !kept[s] {
			c.min, c.max = -1, 0
		}
	}
	h.pools.mu.Unlock()
	h.pools.poke()
}

// refillLoop makes what the pools lack, one after another. polite ones do so
// only while nobody waits for a sandbox.
func (h *Host) refillLoop(ctx context.Context, polite bool) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if !polite || !h.queue.busy() {
			if c, from, spare := h.pools.lack(time.Now()); c != nil {
				h.restock(ctx, c, from, spare)
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-h.pools.news:
		case <-tick.C:
		}
	}
}

// lack picks the pool that lacks most members; when none does, one whose size has
// no prepared box.
func (p *pools) lack(now time.Time) (best *class, from origin, spare bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total, free := memory()
	ready := 0
	for _, c := range p.classes {
		ready += len(c.ready) + c.making
	}
	most := 0
	for _, c := range p.classes {
		if now.Sub(c.failed) < retryPool || c.from.dir == "" {
			continue
		}
		short := c.target(now) - len(c.ready) - c.making
		forced := len(c.ready)+c.making < c.min
		if total > 0 && (free-int64(c.making)*place < reserve+place || !forced && int64(ready+1)*place > (free+int64(ready)*place)/poolShare) {
			c.why = "memory is short"
			continue
		}
		if short > most {
			best, most = c, short
		}
	}
	if best == nil {
		for _, c := range p.classes {
			_, can := c.from.engine.(arenero.Preparer)
			if can && c.max > 0 && now.Sub(c.asked) < poolForgets && now.Sub(c.failed) > retryPool && c.from.dir != "" && !p.hasSpare(c.size) {
				best, spare = c, true
				break
			}
		}
	}
	if best == nil {
		return nil, origin{}, false
	}
	if !spare {
		best.making++
	}
	return best, best.from, spare
}

func (p *pools) hasSpare(s size) bool {
	return slices.ContainsFunc(p.spare, func(sp *spare) bool { return sp.size == s })
}

// restock makes one member, or prepares one box.
func (h *Host) restock(ctx context.Context, c *class, from origin, asSpare bool) {
	start := time.Now()
	ask := arenero.Box{ID: "pool-" + randomText(20), RootFS: from.image.RootFS, Hostname: "pool", Limits: c.limits()}
	var m *member
	var sp *spare
	var err error
	if asSpare {
		var p arenero.Prepared
		if p, err = from.engine.(arenero.Preparer).Prepare(ctx, ask); err == nil { //nolint:errcheck // asSpare says that it can
			sp = &spare{c.size, p}
		}
	} else {
		m, err = h.member(ctx, from, ask)
	}
	h.pools.mu.Lock()
	if !asSpare {
		c.making--
	}
	switch {
	case err != nil:
		if ctx.Err() == nil {
			c.failed, c.why = time.Now(), clip(printable(err.Error()), 300)
		}
	case m != nil:
		c.why = ""
		c.cost = (3*c.cost + time.Since(start)) / 4
		c.ready = append(c.ready, m)
	default:
		h.pools.spare = append(h.pools.spare, sp)
	}
	h.pools.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		h.log.Warn("fill pool", "image", from.image.Name, "err", err)
	}
	if m != nil {
		h.guard(c, m)
	}
}

// limits are what a member is made with; the rest is given when it is handed out.
func (c *class) limits() arenero.Limits {
	return arenero.Limits{CPUs: c.size.cpus, Memory: c.size.memory, Disk: c.size.disk}.WithDefaults()
}

// member restores a sandbox and greets it.
func (h *Host) member(ctx context.Context, from origin, ask arenero.Box) (*member, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ask.Restore = from.dir
	if err := h.trust.check(from.dir, false); err != nil {
		return nil, err
	}
	inst, err := from.engine.Create(ctx, ask)
	if err != nil {
		return nil, err
	}
	guest, err := greet(ctx, inst, 30*time.Second)
	if err != nil {
		err = h.whyMute(ctx, inst, err)
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer stop()
		if derr := inst.Destroy(end); derr != nil {
			h.log.Error("end pool member", "box", ask.ID, "err", derr)
		}
		return nil, err
	}
	m := &member{body: newBody(inst.ID(), inst, guest), dir: from.dir}
	if err := h.rehearse(ctx, guest, from, ask); err != nil {
		h.discard(ctx, m)
		return nil, err
	}
	return m, nil
}

// rehearse does to a member, for nobody, what is done when one is handed out: the
// pages of a restored kernel come in when they are first touched, and that takes
// a hundred milliseconds that nobody should wait for.
func (h *Host) rehearse(ctx context.Context, g arenero.Guest, from origin, ask arenero.Box) error {
	if err := g.Wake(ctx, arenero.Wake{
		SandboxID: ask.ID, Hostname: ask.Hostname, Now: h.now(), Entropy: entropy(), Env: from.image.Env, Limits: ask.Limits,
		User: userOf(from.image), Workdir: workdirOf(from.image), Warm: true,
	}); err != nil {
		return err
	}
	for _, k := range from.image.Warm {
		for range 2 {
			if err := runCode(ctx, g, k.Name, rehearsal[k.Language]); err != nil {
				return err
			}
		}
	}
	return nil
}

// rehearsal is what a kernel of a language does in a rehearsal; it leaves nothing
// behind.
var rehearsal = map[string]string{
	"python": "print(1)",
	"bash":   "echo 1",
}

// guard watches a member until it is handed out: one that dies is thrown away.
func (h *Host) guard(c *class, m *member) {
	watch, leave := context.WithCancel(context.Background())
	m.body.leave = leave
	started := h.spawn(func() {
		exit, err := m.body.inst.Wait(watch)
		if err != nil {
			return // it was handed out
		}
		m.body.ended(exit)
		h.pools.mu.Lock()
		i := slices.Index(c.ready, m)
		if i >= 0 {
			c.ready = slices.Delete(c.ready, i, i+1)
		}
		h.pools.mu.Unlock()
		if i >= 0 && !exit.Destroyed {
			h.log.Warn("pool member ended by itself", "box", m.body.id, "reason", printable(exit.Reason))
			h.discard(watch, m)
			h.pools.poke()
		}
	})
	if !started {
		h.pools.mu.Lock()
		i := slices.Index(c.ready, m)
		if i >= 0 {
			c.ready = slices.Delete(c.ready, i, i+1)
		}
		h.pools.mu.Unlock()
		if i >= 0 {
			h.discard(watch, m)
		}
	}
}

// shrink ends one member that is too many, and forgets sizes nobody asks for.
func (h *Host) shrink(ctx context.Context) {
	now := time.Now()
	var extra *member
	var box arenero.Prepared
	h.pools.mu.Lock()
	for s, c := range h.pools.classes {
		if n := len(c.ready); extra == nil && n > c.target(now) {
			extra = c.ready[n-1]
			c.ready = c.ready[:n-1]
		}
		if len(c.ready) == 0 && c.making == 0 && c.min < 0 && now.Sub(c.asked) > poolForgets {
			delete(h.pools.classes, s)
		}
	}
	for i, sp := range h.pools.spare {
		if h.pools.classes[sp.size] == nil {
			h.pools.spare = slices.Delete(h.pools.spare, i, i+1)
			box = sp.box
			break
		}
	}
	h.pools.mu.Unlock()
	if extra != nil {
		h.discard(ctx, extra)
	}
	if box != nil {
		h.unprepare(ctx, box)
	}
}

func (h *Host) unprepare(ctx context.Context, box arenero.Prepared) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	if err := box.Destroy(end); err != nil {
		h.log.Error("end prepared box", "box", box.ID(), "err", err)
	}
}

// drain empties everything.
func (h *Host) drain(ctx context.Context) {
	h.pools.mu.Lock()
	var all []*member
	for _, c := range h.pools.classes {
		all = append(all, c.ready...)
		c.ready = nil
	}
	spare := h.pools.spare
	h.pools.spare = nil
	h.pools.mu.Unlock()
	var done sync.WaitGroup
	for _, m := range all {
		done.Go(func() { h.discard(ctx, m) })
	}
	for _, sp := range spare {
		done.Go(func() { h.unprepare(ctx, sp.box) })
	}
	done.Wait()
}

// Pools lists what is kept ready, for those who may see it.
func (h *Host) Pools(ctx context.Context, who Who) ([]arenero.Pool, error) {
	if err := h.allow(ctx, who, ScopeRead, "list pools"); err != nil {
		return nil, err
	}
	h.pools.mu.Lock()
	defer h.pools.mu.Unlock()
	now := time.Now()
	out := []arenero.Pool{}
	for _, c := range h.pools.classes {
		out = append(out, arenero.Pool{
			Image: c.from.image.Name, CPUs: c.size.cpus, Memory: c.size.memory, Min: max(c.min, 0), Max: c.max, Target: c.target(now),
			Ready: len(c.ready), Making: c.making, Hits: c.hits, Misses: c.misses, Why: c.why,
		})
	}
	slices.SortFunc(out, func(a, b arenero.Pool) int {
		if a.Image != b.Image {
			return map[bool]int{true: -1, false: 1}[a.Image < b.Image]
		}
		return int(a.Memory - b.Memory)
	})
	return out, nil
}

// SetPool says how many sandboxes of an image and a size are kept ready, from now
// on and after a restart. Of p, the image, the size, min and max count; max 0
// leaves the size to demand again.
func (h *Host) SetPool(ctx context.Context, who Who, p arenero.Pool) error {
	const op = "set pool"
	if err := h.operate(ctx, who, op); err != nil {
		return err
	}
	d := arenero.DefaultLimits()
	orDefault(&p.CPUs, d.CPUs)
	orDefault(&p.Memory, d.Memory)
	if p.Min < 0 || p.Max < p.Min || p.Max > maxPool {
		return arenero.Errorf(arenero.Invalid, op, p.Image, "min is %d and max %d, must be 0 <= min <= max <= %d", p.Min, p.Max, maxPool)
	}
	spec, from, err := h.originOf(ctx, who, arenero.Spec{Image: p.Image, Limits: arenero.Limits{CPUs: p.CPUs, Memory: p.Memory}})
	if err != nil {
		return err
	}
	if err := h.possible(spec.Limits); err != nil {
		return err
	}
	if p.Max > 0 && len(from.image.Warm) == 0 {
		return arenero.Errorf(arenero.Invalid, op, p.Image, "%s", from.why).WithHint("give the recipe a warm section")
	}
	p.Image = from.image.Name
	if err := h.store.SetPool(ctx, p); err != nil {
		return err
	}
	h.pools.mu.Lock()
	h.pools.set = slices.DeleteFunc(h.pools.set, func(o arenero.Pool) bool {
		return o.Image == p.Image && o.CPUs == p.CPUs && o.Memory == p.Memory
	})
	if p.Max > 0 {
		h.pools.set = append(h.pools.set, p)
	}
	h.pools.mu.Unlock()
	h.renewPools(ctx)
	return nil
}
