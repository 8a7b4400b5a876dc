package host

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/image"
)

// profile names what else a warm snapshot depends on; it changes when the way a
// box is set up does.
const profile = "default-1"

// warmDisk bounds what warming may write; at the next Wake the sandbox gets its
// own disk.
const warmDisk = 64 * arenero.MiB

// warmer remembers which images want a warm snapshot.
type warmer struct {
	mu     sync.Mutex
	wake   chan struct{}
	wanted map[string]string    // image digest -> name
	failed map[string]time.Time // image digest -> when it went wrong last
}

// snapshotKey names the machine and the program that a snapshot is good for.
func (h *Host) snapshotKey(engine arenero.Engine, caps arenero.Capabilities, img arenero.Image) image.Key {
	return image.Key{
		Image: img.Digest, Engine: strings.TrimSpace(engine.Name() + " " + caps.Version),
		Platform: caps.Platform, CPU: caps.CPU, Agent: h.AgentDigest, Profile: profile,
	}
}

// findSnapshot fills in where the image's warm snapshot is, or why there is none.
func (h *Host) findSnapshot(img *arenero.Image, engine arenero.Engine, caps arenero.Capabilities) {
	switch {
	case len(img.Warm) == 0:
		img.ColdWhy = "the image names no kernels to keep warm"
		return
	case !caps.Snapshot:
		img.ColdWhy = "engine " + engine.Name() + " can not restore snapshots here"
		return
	}
	img.Snapshot, img.ColdWhy = h.Images.Lookup(h.snapshotKey(engine, caps, *img))
	if img.Snapshot == "" && h.Warm {
		h.wantWarm(*img)
	}
}

// wantWarm asks Run to make a snapshot, soon.
func (h *Host) wantWarm(img arenero.Image) {
	h.warm.mu.Lock()
	defer h.warm.mu.Unlock()
	if at, bad := h.warm.failed[img.Digest]; bad && h.now().Sub(at) < 10*time.Minute {
		return
	}
	if h.warm.wanted == nil {
		h.warm.wanted = map[string]string{}
	}
	h.warm.wanted[img.Digest] = img.Name
	select {
	case h.warm.wake <- struct{}{}:
	default:
	}
}

// warmLoop makes the snapshots that are wanted, one at a time.
func (h *Host) warmLoop(ctx context.Context) {
	if images, err := h.Images.List(ctx); err == nil {
		for _, img := range images {
			h.wantIfCold(ctx, img)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.warm.wake:
		}
		for ctx.Err() == nil {
			digest, name := h.warm.next()
			if digest == "" {
				break
			}
			img, err := h.Images.Get(ctx, name)
			if err != nil || img.Digest != digest {
				continue // removed or replaced meanwhile
			}
			if err := h.WarmImage(ctx, img); err != nil && ctx.Err() == nil {
				h.log.Warn("warm image", "image", name, "err", err)
				h.warm.mu.Lock()
				if h.warm.failed == nil {
					h.warm.failed = map[string]time.Time{}
				}
				h.warm.failed[digest] = h.now()
				h.warm.mu.Unlock()
			}
		}
	}
}

func (h *Host) wantIfCold(ctx context.Context, img arenero.Image) {
	engine := h.Engines[h.DefaultEngine]
	caps, err := h.caps.of(ctx, engine)
	if err == nil && len(caps.Missing) == 0 {
		h.findSnapshot(&img, engine, caps)
	}
}

func (w *warmer) next() (digest, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for digest, name = range w.wanted {
		delete(w.wanted, digest)
		return digest, name
	}
	return "", ""
}

// WarmImage makes the image's warm snapshot for the default engine, unless it
// has one: it boots the image once, starts the kernels the manifest names and
// runs their imports, and keeps the memory. [arenero.Unavailable] when the
// engine can not do that here.
func (h *Host) WarmImage(ctx context.Context, img arenero.Image) (err error) {
	const op = "warm image"
	engine := h.Engines[h.DefaultEngine]
	caps, err := h.caps.of(ctx, engine)
	if err != nil {
		return err
	}
	if len(caps.Missing) > 0 {
		return arenero.Errorf(arenero.Unavailable, op, img.Name, "engine %s: %s", engine.Name(), caps.Missing[0].What).
			WithHint("%s", caps.Missing[0].Mend)
	}
	if !caps.Snapshot || len(img.Warm) == 0 {
		return nil
	}
	key := h.snapshotKey(engine, caps, img)
	if dir, _ := h.Images.Lookup(key); dir != "" {
		return nil
	}
	start := time.Now()
	defer func() {
		outcome := "made"
		if err != nil {
			outcome = "failed"
		}
		h.meter.warmups.WithLabelValues(outcome).Inc()
	}()
	_, err = h.Images.Put(ctx, key, func(dir string) error { return h.warmInto(ctx, engine, img, dir) })
	if err == nil {
		h.log.Info("image is warm", "image", img.Name, "took", time.Since(start).Round(time.Millisecond))
	}
	return err
}

// warmInto boots a box, warms it and writes it into dir. Nothing of the box is
// left.
func (h *Host) warmInto(ctx context.Context, engine arenero.Engine, img arenero.Image, dir string) error {
	const op = "warm image"
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var back undo
	defer back.run(ctx, func(e error) { h.log.Error("take down warming box", "image", img.Name, "err", e) })

	limits := arenero.DefaultLimits()
	limits.Disk = warmDisk
	inst, err := engine.Create(ctx, arenero.Box{
		ID: "warm-" + randomText(16), RootFS: img.RootFS, Hostname: "warm", Limits: limits,
	})
	if err != nil {
		return err
	}
	back.add(inst.Destroy)
	snap, ok := inst.(arenero.Snapshotter)
	if !ok {
		return arenero.Errorf(arenero.Internal, op, img.Name, "engine %s says that it makes snapshots, but its boxes do not", engine.Name())
	}
	guest, err := greet(ctx, inst, time.Minute)
	if err != nil {
		return h.whyMute(ctx, inst, err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = guest.Close() // the first error says more
		}
	}()
	if err := guest.Wake(ctx, arenero.Wake{
		SandboxID: inst.ID(), Hostname: "warm", Now: h.now(), Entropy: entropy(), Env: img.Env, Limits: limits,
		User: userOf(img), Workdir: workdirOf(img), Warm: true,
	}); err != nil {
		return h.whyMute(ctx, inst, err)
	}
	for _, k := range img.Warm {
		if err := warmKernel(ctx, guest, k); err != nil {
			return arenero.Errorf(arenero.CodeOf(err), op, img.Name, "kernel %s: %w", clip(printable(k.Name), 64), err)
		}
	}
	closed = true
	if err := guest.Close(); err != nil { // an open connection would be part of the snapshot
		return arenero.Errorf(arenero.Internal, op, img.Name, "close wire: %w", err)
	}
	return snap.Snapshot(ctx, dir, false)
}

func warmKernel(ctx context.Context, g arenero.Guest, k arenero.WarmKernel) error {
	if _, err := g.StartKernel(ctx, arenero.KernelRequest{Name: k.Name, Language: k.Language}); err != nil {
		return err
	}
	return runCode(ctx, g, k.Name, k.Code)
}

// runCode runs code that belongs to nobody; "" is nothing to do.
func runCode(ctx context.Context, g arenero.Guest, kernel, code string) error {
	if code == "" {
		return nil
	}
	x, err := g.Execute(ctx, arenero.Execute{Kernel: kernel, Code: code, Timeout: 2 * time.Minute, Silent: true})
	if err != nil {
		return err
	}
	defer x.Close()
	c := NewCollector(4 * arenero.KiB)
	if err := CollectExecution(x, c, nil); err != nil {
		return err
	}
	if r := c.Result(); r.ExitReason != arenero.Exited || r.ExitCode != 0 {
		return arenero.Errorf(arenero.Invalid, "run warm-up code", "", "%s: %s", r.ExitReason, clip(printable(r.Output), 500))
	}
	return nil
}
