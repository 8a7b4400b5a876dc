package host_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

func TestMain(m *testing.M) {
	enginetest.LocalAgent()
	goleak.VerifyTestMain(m)
}

// parts are what several hosts, one after another, may share.
type parts struct {
	engine arenero.Engine
	images *image.Store
	data   string
}

func newParts(t *testing.T) parts {
	return parts{engine: enginetest.Local(t), images: enginetest.LocalImages(t), data: t.TempDir()}
}

// open makes a host; shut closes it and its store.
func (p parts) open(t *testing.T, c host.Config) (h *host.Host, shut func()) {
	t.Helper()
	db, err := store.Open(p.data)
	if err != nil {
		t.Fatal(err)
	}
	c.Engines, c.DefaultEngine = map[string]arenero.Engine{"local": p.engine}, "local"
	c.Images, c.Store = p.images, db
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	h, err = host.New(c)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	shut = func() {
		once.Do(func() {
			if err := h.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(shut)
	return h, shut
}

func create(t *testing.T, h *host.Host, s arenero.Spec) arenero.Sandbox {
	t.Helper()
	sb, err := h.Create(context.Background(), host.Local(), s)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func guestOf(t *testing.T, h *host.Host, id string) arenero.Guest {
	t.Helper()
	g, err := h.Guest(context.Background(), host.Local(), id, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// sh runs a shell command to its end.
func sh(t *testing.T, g arenero.Guest, script string, timeout time.Duration) (arenero.Result, error) {
	t.Helper()
	p, err := g.Start(context.Background(), arenero.Command{Argv: []string{"/bin/sh", "-c", script}, Timeout: timeout})
	if err != nil {
		return arenero.Result{}, err
	}
	defer p.Close()
	c := host.NewCollector(1 << 20)
	err = host.CollectProcess(p, c, nil)
	return c.Result(), err
}

func cell(t *testing.T, h *host.Host, g arenero.Guest, code string, timeout time.Duration) arenero.Result {
	t.Helper()
	if err := h.EnsureKernel(context.Background(), g, "python", ""); err != nil {
		t.Fatal(err)
	}
	x, err := g.Execute(context.Background(), arenero.Execute{Kernel: "python", Code: code, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	c := host.NewCollector(1 << 20)
	if err := host.CollectExecution(x, c, nil); err != nil {
		t.Fatal(err)
	}
	return c.Result()
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came: " + what)
		}
	}
}

func TestLife(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	ctx := context.Background()
	sb := create(t, h, arenero.Spec{Env: map[string]string{"CALLER_SAYS": "hi"}, Labels: map[string]string{"a": "b"}})
	if sb.State != arenero.Running || sb.From != "boot" || sb.FromWhy == "" || len(sb.ID) != 30 || sb.Tenant != "default" {
		t.Errorf("%+v", sb)
	}
	g := guestOf(t, h, sb.ID)
	r, err := sh(t, g, "echo $CALLER_SAYS $IMAGE_SAYS; pwd; id -u; echo oops >&2; exit 3", 0)
	if err != nil || r.Stdout != "hi hello\n/home/user/work\n1000\n" || r.Stderr != "oops\n" || r.ExitCode != 3 || r.ExitReason != arenero.Exited {
		t.Errorf("%+v %v", r, err)
	}
	if r := cell(t, h, g, "x = 41", 0); r.ExitReason != arenero.Exited {
		t.Errorf("%+v", r)
	}
	if r := cell(t, h, g, "print('a'); x + 1", 0); r.Output != "a\n42\n" || r.ExecutionCount != 2 || len(r.Results) != 1 || !r.Results[0].IsMain {
		t.Errorf("%+v", r)
	}
	if r := cell(t, h, g, "1/0", 0); r.ExitReason != arenero.RaisedError || r.Error.Name != "ZeroDivisionError" || r.ExitCode != 1 {
		t.Errorf("%+v", r)
	}
	all, err := h.List(ctx, host.Local(), host.Filter{})
	if err != nil || len(all) != 1 || all[0].ID != sb.ID {
		t.Errorf("%v %v", all, err)
	}
	for range 2 { // the second time it is no error
		if err := h.Kill(ctx, host.Local(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.Get(ctx, host.Local(), sb.ID)
	if err != nil || got.State != arenero.Killed || got.Reason == "" {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := sh(t, g, "true", 0); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("a guest of a killed sandbox: %v", err)
	}
	if _, err := h.Guest(ctx, host.Local(), sb.ID, host.ScopeRun); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("guest: %v", err)
	}
}

// Another tenant's sandbox does not exist, whatever is asked of it.
func TestOtherTenant(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	ctx := context.Background()
	secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "other"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := h.Authenticate(ctx, secret)
	if err != nil {
		t.Fatal(err)
	}
	mine := create(t, h, arenero.Spec{})
	theirs, err := h.Create(ctx, other, arenero.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	_, getErr := h.Get(ctx, other, mine.ID)
	_, guestErr := h.Guest(ctx, other, mine.ID, host.ScopeRun)
	_, noneErr := h.Get(ctx, other, host.NewID())
	for what, err := range map[string]error{"get": getErr, "guest": guestErr, "kill": h.Kill(ctx, other, mine.ID), "none": noneErr} {
		if arenero.CodeOf(err) != arenero.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := h.List(ctx, other, host.Filter{}); err != nil || len(all) != 1 || all[0].ID != theirs.ID {
		t.Errorf("%v %v", all, err)
	}
	if sb, err := h.Get(ctx, host.Local(), mine.ID); err != nil || sb.State != arenero.Running {
		t.Errorf("%+v %v", sb, err)
	}
}

func TestTimeouts(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	sb := create(t, h, arenero.Spec{})
	g := guestOf(t, h, sb.ID)
	r, err := sh(t, g, "echo before; (setsid sleep 1000 &) ; sleep 1000", 300*time.Millisecond)
	if err != nil || r.ExitReason != arenero.TimedOut || r.Stdout != "before\n" || r.ExitCode == 0 {
		t.Errorf("%+v %v", r, err)
	}
	if r := cell(t, h, g, "x = 7", 0); r.ExitReason != arenero.Exited {
		t.Fatalf("%+v", r)
	}
	start := time.Now()
	r = cell(t, h, g, "import time\nprint('before', flush=True)\ntime.sleep(1000)", 500*time.Millisecond)
	if r.ExitReason != arenero.TimedOut || r.Stdout != "before\n" || time.Since(start) > 10*time.Second {
		t.Errorf("%+v after %v", r, time.Since(start))
	}
	if r := cell(t, h, g, "x", 0); r.Output != "7\n" {
		t.Errorf("variables are gone: %+v", r)
	}
	if _, err := g.Execute(context.Background(), arenero.Execute{Kernel: "python", Timeout: -1}); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("negative: %v", err)
	}
}

// A guest that does not end a run at its timeout loses its sandbox, and the
// caller hears of the timeout all the same.
func TestGuestThatDoesNotEndARun(t *testing.T) {
	p := newParts(t)
	h, _ := p.open(t, host.Config{Grace: 500 * time.Millisecond})
	sb := create(t, h, arenero.Spec{})
	g := guestOf(t, h, sb.ID)
	proc, err := g.Start(context.Background(), arenero.Command{Argv: []string{"/bin/sh", "-c", "echo before; sleep 1000"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if e, err := proc.Next(); err != nil || string(e.Stdout) != "before\n" {
		t.Fatalf("%+v %v", e, err)
	}
	stop := signalAgent(t, p.engine, sb.ID, "STOP")
	defer stop()
	c := host.NewCollector(1000)
	if err := host.CollectProcess(proc, c, nil); err != nil || c.Result().ExitReason != arenero.TimedOut || c.Result().ExitCode != 124 {
		t.Errorf("%+v %v", c.Result(), err)
	}
	waitFor(t, "the end of the sandbox", func() bool {
		got, err := h.Get(context.Background(), host.Local(), sb.ID)
		return err == nil && got.State == arenero.Killed && got.ExitCause == arenero.TimedOut
	})
}

// signalAgent sends a signal to the agent of a local box.
func signalAgent(t *testing.T, e arenero.Engine, id, signal string) (undo func()) {
	t.Helper()
	ids, err := e.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ids, func(box string) bool { return strings.HasPrefix(box, "box-"+id[4:12]+"-") })
	if i < 0 {
		t.Fatal("no box of " + id)
	}
	if err := enginetest.SignalLocal(e, ids[i], signal); err != nil {
		t.Fatal(err)
	}
	return func() { _ = enginetest.SignalLocal(e, ids[i], "CONT") } // it may be gone
}

func TestBoxThatDiesAlone(t *testing.T) {
	p := newParts(t)
	h, _ := p.open(t, host.Config{})
	sb := create(t, h, arenero.Spec{})
	g := guestOf(t, h, sb.ID)
	proc, err := g.Start(context.Background(), arenero.Command{Argv: []string{"/bin/sh", "-c", "echo before; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if _, err := proc.Next(); err != nil {
		t.Fatal(err)
	}
	signalAgent(t, p.engine, sb.ID, "KILL")
	e, err := proc.Next()
	if err != nil || e.Exit == nil || e.Exit.Reason != arenero.WasKilled || e.Exit.Code != 137 {
		t.Errorf("%+v %v", e, err)
	}
	if _, err := proc.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	waitFor(t, "the record", func() bool {
		got, err := h.Get(context.Background(), host.Local(), sb.ID)
		return err == nil && got.State == arenero.Failed && got.Reason != ""
	})
	waitFor(t, "the sweep", func() bool {
		ids, err := p.engine.List(context.Background())
		return err == nil && len(ids) == 0
	})
	if err := h.Kill(context.Background(), host.Local(), sb.ID); err != nil {
		t.Errorf("kill of a dead one: %v", err)
	}
}

func TestLifetimeAndIdle(t *testing.T) {
	for name, c := range map[string]struct {
		config host.Config
		spec   arenero.Spec
	}{
		"lifetime": {host.Config{}, arenero.Spec{Lifetime: time.Second}},
		"idle":     {host.Config{Idle: time.Second}, arenero.Spec{}},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := newParts(t).open(t, c.config)
			ctx, cancel := context.WithCancel(context.Background())
			ran := make(chan error, 1)
			go func() { ran <- h.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}()
			sb := create(t, h, c.spec)
			waitFor(t, "its end", func() bool {
				got, err := h.Get(ctx, host.Local(), sb.ID)
				return err == nil && got.State == arenero.Killed && got.ExitCause == arenero.TimedOut
			})
		})
	}
}

// A daemon that was killed left a running sandbox, a half-made one, a half-ended
// one, a lost one and a box that nobody knows; the next one puts all in order.
func TestRecover(t *testing.T) {
	p := newParts(t)
	h, shut := p.open(t, host.Config{Keep: true})
	running := create(t, h, arenero.Spec{})
	lost := create(t, h, arenero.Spec{})
	ending := create(t, h, arenero.Spec{})
	if r := cell(t, h, guestOf(t, h, running.ID), "x = 5", 0); r.ExitReason != arenero.Exited {
		t.Fatalf("%+v", r)
	}
	shut() // it keeps them: as after kill -9, but for what is done below
	ctx := context.Background()
	db, err := store.Open(p.data)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.MoveSandbox(ctx, ending.ID, arenero.Running, store.Change{To: arenero.Killing}); err != nil {
		t.Fatal(err)
	}
	half := store.Row{Sandbox: running, Box: "half"}
	half.ID, half.State = host.NewID(), arenero.Creating
	boxOf := func(id string) string {
		row, err := db.Sandbox(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return row.Box
	}
	lostBox, runningBox := boxOf(lost.ID), boxOf(running.ID)
	if err := db.AddSandbox(ctx, half); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{half.Box, "nobodys"} {
		if _, err := p.engine.Create(ctx, arenero.Box{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	inst, err := p.engine.Open(ctx, lostBox)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Destroy(ctx); err != nil {
		t.Fatal(err)
	}

	p.engine = enginetest.Again(p.engine)
	h, _ = p.open(t, host.Config{})
	if err := h.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]arenero.State{
		running.ID: arenero.Running, lost.ID: arenero.Failed, ending.ID: arenero.Killed, half.ID: arenero.Failed,
	} {
		if got, err := h.Get(ctx, host.Local(), id); err != nil || got.State != want || want != arenero.Running && got.Reason == "" {
			t.Errorf("%s: %+v %v, want %s", id, got, err, want)
		}
	}
	if ids, err := p.engine.List(ctx); err != nil || len(ids) != 1 || ids[0] != runningBox {
		t.Errorf("boxes: %v %v", ids, err)
	}
	if r := cell(t, h, guestOf(t, h, running.ID), "x", 0); r.Output != "5\n" {
		t.Errorf("its kernel has forgotten: %+v", r)
	}
}

func TestCloseEndsAll(t *testing.T) {
	p := newParts(t)
	h, shut := p.open(t, host.Config{})
	sb := create(t, h, arenero.Spec{})
	shut()
	if ids, err := p.engine.List(context.Background()); err != nil || len(ids) != 0 {
		t.Errorf("%v %v", ids, err)
	}
	if _, err := h.Create(context.Background(), host.Local(), arenero.Spec{}); err == nil {
		t.Error("a closed host makes sandboxes")
	}
	h, _ = p.open(t, host.Config{})
	if got, err := h.Get(context.Background(), host.Local(), sb.ID); err != nil || got.State != arenero.Killed {
		t.Errorf("%+v %v", got, err)
	}
}

func TestKillWhileItIsMade(t *testing.T) {
	p := newParts(t)
	h, _ := p.open(t, host.Config{})
	for i := range 5 {
		ctx, cancel := context.WithCancel(context.Background())
		made := make(chan error, 1)
		go func() {
			_, err := h.Create(ctx, host.Local(), arenero.Spec{})
			made <- err
		}()
		time.Sleep(time.Duration(i*7) * time.Millisecond)
		if i%2 == 0 {
			cancel()
		} else if all, err := h.List(ctx, host.Local(), host.Filter{}); err != nil {
			t.Error(err)
		} else {
			for _, sb := range all {
				if err := h.Kill(ctx, host.Local(), sb.ID); err != nil {
					t.Error(err)
				}
			}
		}
		err := <-made
		cancel()
		all, lerr := h.List(context.Background(), host.Local(), host.Filter{})
		if lerr != nil {
			t.Fatal(lerr)
		}
		for _, sb := range all {
			if err != nil || sb.State != arenero.Running {
				t.Errorf("left %+v after %v", sb, err)
			}
			if err := h.Kill(context.Background(), host.Local(), sb.ID); err != nil {
				t.Error(err)
			}
		}
	}
	waitFor(t, "no boxes", func() bool {
		ids, err := p.engine.List(context.Background())
		return err == nil && len(ids) == 0
	})
}

// claimsSnapshots is an engine that says it restores snapshots, and then does
// not: as after an upgrade of the machine.
type claimsSnapshots struct{ arenero.Engine }

func (c claimsSnapshots) Probe(ctx context.Context) (arenero.Capabilities, error) {
	caps, err := c.Engine.Probe(ctx)
	caps.Snapshot = true
	return caps, err
}

func TestRestoreThatFailsBoots(t *testing.T) {
	p := newParts(t)
	p.images = enginetest.LocalImages(t, arenero.WarmKernel{Name: "python", Language: "python"})
	p.engine = claimsSnapshots{p.engine}
	h, _ := p.open(t, host.Config{AgentDigest: "d"})
	ctx := context.Background()
	img, err := p.images.Get(ctx, "python")
	if err != nil {
		t.Fatal(err)
	}
	if sb := create(t, h, arenero.Spec{}); sb.From != "boot" || !strings.Contains(sb.FromWhy, "no warm snapshot") {
		t.Errorf("%q %q", sb.From, sb.FromWhy)
	}
	caps, err := p.engine.Probe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	key := image.Key{Image: img.Digest, Engine: "local " + caps.Version, Platform: caps.Platform, CPU: caps.CPU, Agent: "d", Profile: "default-1"}
	if _, err := p.images.Put(ctx, key, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "memory"), []byte("x"), 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	if sb := create(t, h, arenero.Spec{}); sb.From != "boot" || !strings.Contains(sb.FromWhy, "restores nothing") {
		t.Errorf("%q %q", sb.From, sb.FromWhy)
	}
}

func TestAdmission(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{MaxSandboxes: 1})
	ctx := context.Background()
	for name, c := range map[string]struct {
		spec arenero.Spec
		want arenero.Code
	}{
		"memory":  {arenero.Spec{Limits: arenero.Limits{Memory: arenero.MaxMemory}}, arenero.Exhausted},
		"cpus":    {arenero.Spec{Limits: arenero.Limits{CPUs: arenero.MaxCPUs}}, arenero.Exhausted},
		"image":   {arenero.Spec{Image: "none"}, arenero.NotFound},
		"engine":  {arenero.Spec{Engine: "none"}, arenero.NotFound},
		"forever": {arenero.Spec{Lifetime: 1000 * time.Hour}, arenero.Invalid},
		"labels":  {arenero.Spec{Labels: map[string]string{"": "x"}}, arenero.Invalid},
	} {
		if _, err := h.Create(ctx, host.Local(), c.spec); arenero.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "default", Ceilings: store.Ceilings{Memory: 128 * arenero.MiB}})
	if err != nil {
		t.Fatal(err)
	}
	who, err := h.Authenticate(ctx, secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(ctx, who, arenero.Spec{}); arenero.CodeOf(err) != arenero.Denied {
		t.Errorf("ceiling: %v", err)
	}
	create(t, h, arenero.Spec{})
	if _, err := h.Create(ctx, host.Local(), arenero.Spec{}); arenero.CodeOf(err) != arenero.Exhausted {
		t.Errorf("one too many: %v", err)
	}
}
