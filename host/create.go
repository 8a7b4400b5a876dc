package host

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"maps"
	"runtime"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/dial"

	"github.com/arenero/arenero/store"
)

// Who asks.
type Who = arenero.Who

// Create makes a sandbox and returns when it can be used. All or nothing: after
// an error, or when the caller goes away, nothing of it is left but its record.
//
// [arenero.Invalid] for a spec that can never be, [arenero.NotFound] for an
// unknown image or engine, [arenero.Exhausted] when it does not fit,
// [arenero.Unavailable] when this machine can not isolate it as asked.
func (h *Host) Create(ctx context.Context, who Who, spec arenero.Spec) (arenero.Sandbox, error) {
	b, err := h.create(ctx, who, spec)
	if err != nil {
		return arenero.Sandbox{}, err
	}
	return b.sandbox(), nil
}

func (h *Host) create(ctx context.Context, who Who, spec arenero.Spec) (*box, error) {
	const op = "create sandbox"
	if err := h.allow(ctx, who, ScopeRun, op); err != nil {
		return nil, err
	}
	spec, err := h.complete(spec)
	if err != nil {
		return nil, err
	}
	engine := h.Engines[spec.Engine]
	if engine == nil {
		return nil, arenero.Errorf(arenero.NotFound, op, "", "no engine %q", clip(spec.Engine, 64)).
			WithHint("engines here: %s", strings.Join(h.engineNames(), ", "))
	}
	caps, err := h.caps.of(ctx, engine)
	if err != nil {
		return nil, err
	}
	if len(caps.Missing) > 0 {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "engine %s: %s", spec.Engine, caps.Missing[0].What).
			WithHint("%s", caps.Missing[0].Mend)
	}
	image, err := h.Images.Get(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	h.findSnapshot(&image, engine, caps)

	now := h.now()
	sb := arenero.Sandbox{
		ID: NewID(), State: arenero.Creating, Image: image.Name, Engine: spec.Engine, Limits: spec.Limits,
		Labels: spec.Labels, Tenant: who.Tenant, Created: now, Ends: now.Add(spec.Lifetime),
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := newBox(sb, stop, now)
	b.image = image
	if err := h.admit(ctx, who, b); err != nil {
		stop()
		return nil, err
	}
	defer close(b.made)
	if err := h.store.AddSandbox(ctx, sb, spec); err != nil {
		stop()
		h.drop(b)
		return nil, err
	}
	h.meter.moved(arenero.Creating)
	started := time.Now()
	if err := h.build(ctx, life, b, engine, spec); err != nil {
		stop()
		h.meter.created("failed", time.Since(started))
		return nil, h.abandon(ctx, b, err)
	}
	h.meter.created(b.sandbox().From, time.Since(started))
	return b, nil
}

// build makes the box and brings the sandbox to running. life ends when the
// sandbox is to end.
func (h *Host) build(ctx, life context.Context, b *box, engine arenero.Engine, spec arenero.Spec) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	from, why := "restore", ""
	if b.image.Snapshot != "" {
		err = h.attempt(ctx, b, engine, spec, b.image.Snapshot)
		if err != nil && ctx.Err() == nil {
			why = "the warm snapshot could not be restored: " + clip(printable(err.Error()), 300)
			h.log.Warn("restore warm snapshot", "id", b.sb.ID, "image", b.image.Name, "err", err)
		}
	} else {
		why = b.image.ColdWhy
	}
	if b.image.Snapshot == "" || err != nil && ctx.Err() == nil {
		from = "boot"
		err = h.attempt(ctx, b, engine, spec, "")
	}
	if err != nil {
		return err
	}
	if err := h.move(ctx, b, store.Change{To: arenero.Running, From: from, FromWhy: why}); err != nil {
		return h.takeBack(ctx, b, err)
	}
	inst := b.inst
	if !h.spawn(func() { h.watch(life, b, inst) }) {
		return h.takeBack(ctx, b, arenero.Errorf(arenero.Unavailable, "create sandbox", b.sb.ID, "the daemon is stopping"))
	}
	return nil
}

// attempt makes one box in one way and greets its guest, or leaves nothing.
func (h *Host) attempt(ctx context.Context, b *box, engine arenero.Engine, spec arenero.Spec, restore string) (err error) {
	hostname := spec.Hostname
	if hostname == "" {
		hostname = b.sb.ID
	}
	var back undo
	defer func() {
		if err != nil {
			back.run(ctx, func(e error) { h.log.Error("take back half-made sandbox", "id", b.sb.ID, "err", e) })
		}
	}()
	inst, err := engine.Create(ctx, arenero.Box{
		ID: b.sb.ID, RootFS: b.image.RootFS, Restore: restore,
		Hostname: hostname, Limits: spec.Limits,
	})
	if err != nil {
		return err
	}
	back.add(inst.Destroy)
	guest, err := greet(ctx, inst, 30*time.Second)
	if err != nil {
		return h.whyMute(ctx, inst, err)
	}
	back.add(func(context.Context) error { return guest.Close() })
	if err := guest.Wake(ctx, h.identity(b, hostname, spec)); err != nil {
		return h.whyMute(ctx, inst, err)
	}
	b.mu.Lock()
	b.inst, b.guest = inst, guest
	b.mu.Unlock()
	return nil
}

func (h *Host) identity(b *box, hostname string, spec arenero.Spec) arenero.Wake {
	env := make(map[string]string, len(b.image.Env)+len(spec.Env))
	maps.Copy(env, b.image.Env)
	maps.Copy(env, spec.Env)
	return arenero.Wake{
		SandboxID: b.sb.ID, Hostname: hostname, Now: h.now(), Entropy: entropy(),
		Env: env, Limits: spec.Limits, User: userOf(b.image), Workdir: workdirOf(b.image),
	}
}

// greet opens the wire and asks who answers.
func greet(ctx context.Context, inst arenero.Instance, within time.Duration) (arenero.Guest, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := inst.Dial(ctx)
	if err != nil {
		return nil, err
	}
	guest, err := dial.Open(ctx, conn) // conn is its own from here
	if err != nil {
		return nil, err
	}
	if _, err := guest.Hello(ctx); err != nil {
		_ = guest.Close() // likewise
		return nil, err
	}
	return guest, nil
}

// whyMute adds to a failed greeting how the box ended, if it has.
func (h *Host) whyMute(ctx context.Context, inst arenero.Instance, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 200*time.Millisecond)
	defer cancel()
	exit, werr := inst.Wait(ctx)
	if werr != nil {
		return arenero.Errorf(arenero.CodeOf(err), "greet guest", inst.ID(), "%w", err)
	}
	if exit.OutOfMemory {
		return arenero.Errorf(arenero.Exhausted, "greet guest", inst.ID(), "the box ran out of memory while it started: %w", err).
			WithHint("give it more memory")
	}
	return arenero.Errorf(arenero.Unavailable, "greet guest", inst.ID(), "the box ended while it started (%s): %w", printable(exit.Reason), err)
}

// takeBack destroys a box that was made but can not be kept.
func (h *Host) takeBack(ctx context.Context, b *box, cause error) error {
	b.mu.Lock()
	guest, inst := b.guest, b.inst
	b.guest, b.inst = nil, nil
	b.mu.Unlock()
	var back undo
	back.add(inst.Destroy)
	back.add(func(context.Context) error { return guest.Close() })
	back.run(ctx, func(e error) { h.log.Error("take back sandbox", "id", b.sb.ID, "err", e) })
	return cause
}

// abandon records that a sandbox could not be made, and says why to the caller.
func (h *Host) abandon(ctx context.Context, b *box, cause error) error {
	if b.state() == arenero.Killing { // whoever kills it writes the record
		return arenero.Errorf(arenero.Canceled, "create sandbox", b.sb.ID, "it was killed while it was made")
	}
	if ctx.Err() != nil && arenero.CodeOf(cause) != arenero.Timeout {
		cause = arenero.Errorf(arenero.Canceled, "create sandbox", b.sb.ID, "the caller went away: %w", cause)
	}
	rec, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	err := h.move(rec, b, store.Change{To: arenero.Failed, Reason: clip(printable(cause.Error()), 1000)})
	if err != nil && b.state() != arenero.Killing {
		h.log.Error("record failed sandbox", "id", b.sb.ID, "err", err)
	}
	if b.state() != arenero.Killing {
		h.drop(b)
	}
	return cause
}

func (h *Host) drop(b *box) {
	h.mu.Lock()
	delete(h.boxes, b.sb.ID)
	h.mu.Unlock()
}

// complete fills in defaults and refuses what can never be.
func (h *Host) complete(s arenero.Spec) (arenero.Spec, error) {
	const op = "create sandbox"
	orDefault(&s.Image, "python")
	orDefault(&s.Engine, h.DefaultEngine)
	orDefault(&s.Lifetime, h.Lifetime)
	s.Limits = s.Limits.WithDefaults()
	if err := s.Limits.Validate(); err != nil {
		return s, err
	}
	if s.Lifetime < time.Second || s.Lifetime > h.MaxLifetime {
		return s, arenero.Errorf(arenero.Invalid, op, "", "lifetime is %v, must be between 1s and %v", s.Lifetime, h.MaxLifetime)
	}
	if s.Hostname != "" && !isLabel(s.Hostname) {
		return s, arenero.Errorf(arenero.Invalid, op, "", "hostname must be 1 to 63 of a-z, 0-9 and '-', not at an end")
	}
	if err := CheckEnv(s.Env); err != nil {
		return s, err
	}
	if len(s.Labels) > 64 {
		return s, arenero.Errorf(arenero.Invalid, op, "", "%d labels, at most 64", len(s.Labels))
	}
	for k, v := range s.Labels {
		if k == "" || len(k) > 128 || len(v) > 1024 || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return s, arenero.Errorf(arenero.Invalid, op, "", "label %q: names are 1 to 128 bytes, values at most 1024, both UTF-8", clip(k, 128))
		}
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	return s, nil
}

// CheckEnv refuses variables that no process could be given.
func CheckEnv(env map[string]string) error {
	bad := func(format string, args ...any) error {
		return arenero.Errorf(arenero.Invalid, "check environment", "", format, args...)
	}
	if len(env) > 512 {
		return bad("%d variables, at most 512", len(env))
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k):
			return bad("%q is not a name of a variable", clip(k, 64))
		case strings.Contains(v, "\x00") || !utf8.ValidString(v):
			return bad("the value of %q has a NUL byte or is not UTF-8", clip(k, 64))
		}
	}
	if int64(total) > 128*arenero.KiB {
		return bad("%d bytes together, at most 128 KiB", total)
	}
	return nil
}

// admit keeps the box if it fits this machine and the key's ceilings. From here
// on it counts, so that two creates can not take the same last place.
func (h *Host) admit(ctx context.Context, who Who, b *box) error {
	const op = "create sandbox"
	l := b.sb.Limits
	if n := runtime.NumCPU(); l.CPUs > float64(n) {
		return arenero.Errorf(arenero.Exhausted, op, "", "it asks for %g cpus, this machine has %d", l.CPUs, n).
			WithHint("ask for at most %d", n)
	}
	total, free := memory()
	if total > 0 && l.Memory > total {
		return arenero.Errorf(arenero.Exhausted, op, "", "it asks for %d MiB memory, this machine has %d", l.Memory/arenero.MiB, total/arenero.MiB).
			WithHint("ask for less memory")
	}
	if total > 0 && free < 192*arenero.MiB {
		return arenero.Errorf(arenero.Exhausted, op, "", "only %d MiB of memory are free on this machine", free/arenero.MiB).
			WithHint("end some sandboxes, or try again later")
	}
	ceil, err := h.ceilings(ctx, who)
	if err != nil {
		return err
	}
	if ceil.Memory > 0 && l.Memory > ceil.Memory || ceil.CPUs > 0 && l.CPUs > ceil.CPUs || ceil.Disk > 0 && l.Disk > ceil.Disk {
		return arenero.Errorf(arenero.Denied, op, "", "it asks for more than this key may have (%s)", l)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return arenero.Errorf(arenero.Unavailable, op, "", "the daemon is stopping")
	}
	if len(h.boxes) >= h.MaxSandboxes {
		return arenero.Errorf(arenero.Exhausted, op, "", "%d sandboxes exist, the most this daemon holds", len(h.boxes)).
			WithHint("end some sandboxes, or start the daemon with a higher bound")
	}
	if ceil.Sandboxes > 0 {
		n := 0
		for _, other := range h.boxes {
			if other.sb.Tenant == who.Tenant { // never changes: no lock
				n++
			}
		}
		if n >= ceil.Sandboxes {
			return arenero.Errorf(arenero.Exhausted, op, "", "this key may have %d sandboxes at once", ceil.Sandboxes).
				WithHint("end some of them")
		}
	}
	h.boxes[b.sb.ID] = b
	return nil
}

// NewID makes the id of a sandbox: nobody guesses 130 random bits.
func NewID() string { return "sbx-" + randomText(26) }

// randomText returns n random characters of base32, five bits each.
func randomText(n int) string {
	raw := make([]byte, n*5/8+1)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(raw))[:n]
}

func entropy() []byte {
	e := make([]byte, 64)
	_, _ = rand.Read(e) // likewise
	return e
}

func userOf(img arenero.Image) arenero.User {
	if img.User.Name == "" {
		return arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}
	}
	return img.User
}

func workdirOf(img arenero.Image) string {
	if img.Workdir == "" {
		return "/workspace"
	}
	return img.Workdir
}

func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-') {
			return false
		}
	}
	return true
}

// clip cuts a string to n bytes, at a border of characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// printable makes words of a guest or of an engine fit for a log line or a
// message: control characters and broken UTF-8 become escapes.
func printable(s string) string {
	var b strings.Builder
	for _, r := range clip(s, 2048) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			b.WriteByte('?')
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (h *Host) engineNames() []string {
	names := make([]string, 0, len(h.Engines))
	for n := range h.Engines {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}
