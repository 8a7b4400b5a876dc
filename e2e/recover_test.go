package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// sentries are the processes of the boxes whose names begin so.
func sentries(t *testing.T, m home, prefix string) []int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.dir, "boxes", prefix+"*", "box.json"))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // it is being taken down
		}
		var rec struct {
			PID int `json:"pid"`
		}
		if err := json.Unmarshal(raw, &rec); err != nil {
			t.Fatal(err)
		}
		if rec.PID > 0 {
			pids = append(pids, rec.PID)
		}
	}
	return pids
}

// A daemon that comes back finds everything as it was: what ran runs, what slept
// sleeps, in memory or on disk, and what was being done is finished or undone.
func TestRestart(t *testing.T) {
	home := newHome(t)
	keep := host.Config{Keep: true}
	h, shut := home.open(t, keep)
	running, paused, asleep := mk(t, h, arenero.Spec{}), mk(t, h, arenero.Spec{}), mk(t, h, arenero.Spec{})
	for _, sb := range []arenero.Sandbox{running, paused, asleep} {
		py(t, h, sb.ID, living)
	}
	g, err := h.Guest(t.Context(), me(), running.ID, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh", "-c", "echo one; sleep 2; echo two; sleep 1000"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	pid := p.PID()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := h.Pause(t.Context(), me(), paused.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Hibernate(t.Context(), me(), asleep.ID); err != nil {
		t.Fatal(err)
	}
	snap, err := h.Snapshot(t.Context(), me(), running.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	shut()
	if err := os.MkdirAll(filepath.Join(home.dir, "states", "fork-nobodys", "box"), 0o700); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // it says two while nobody listens

	start := time.Now()
	h, _ = home.open(t, keep)
	for id, want := range map[string]arenero.State{running.ID: arenero.Running, paused.ID: arenero.Paused, asleep.ID: arenero.Hibernated} {
		stateIs(t, h, id, want)
	}
	for _, sb := range []arenero.Sandbox{running, paused, asleep} {
		if out := py(t, h, sb.ID, "a = n; time.sleep(0.1); print(x, n > a)"); out != "{'a': [1, 2, 3]} True" {
			t.Errorf("%q", out)
		}
	}
	t.Logf("all three used after %v", time.Since(start))
	if g, err = h.Guest(t.Context(), me(), running.ID, host.ScopeRun); err != nil {
		t.Fatal(err)
	}
	again, err := g.Attach(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var said strings.Builder
	for !strings.Contains(said.String(), "two") {
		e, err := again.Next()
		if err != nil || e.Exit != nil {
			t.Fatalf("%q %+v %v", said.String(), e, err)
		}
		said.Write(e.Stdout)
	}
	if said.String() != "one\ntwo\n" {
		t.Errorf("%q", said.String())
	}
	if _, err := os.Stat(filepath.Join(home.dir, "states", "fork-nobodys")); err == nil {
		t.Error("a state that nobody owns is still there")
	}
	if n, err := h.GetSnapshot(t.Context(), me(), snap.ID); err != nil || !n.Usable {
		t.Errorf("%+v %v", n, err)
	}
}

// A sandbox that dies alone is told as such.
func TestDeath(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{})
	kill(t, home, "box-")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		got, err := h.Get(t.Context(), me(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.State == arenero.Failed && got.Reason != "" && got.ExitCause == arenero.WasKilled {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", got)
		}
	}
	all, err := h.Events(t.Context(), me(), sb.ID, 0, 0, false)
	if err != nil || len(all) == 0 || all[len(all)-1].State != arenero.Failed || all[len(all)-1].Detail["exit_reason"] != "killed" {
		t.Errorf("%+v %v", all, err)
	}
	if _, err := h.Resume(t.Context(), me(), sb.ID); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("resume of a dead one: %v", err)
	}
}

// A sandbox nobody uses sleeps, first in memory and then on disk; one that works
// without being asked does not.
func TestIdle(t *testing.T) {
	h, _ := newHome(t).open(t, host.Config{Idle: time.Second, HibernateAfter: time.Second})
	idle, busy := mk(t, h, arenero.Spec{}), mk(t, h, arenero.Spec{})
	py(t, h, idle.ID, "x = 1")
	g, err := h.Guest(t.Context(), me(), busy.ID, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh", "-c", "while :; do :; done"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		sb, err := h.Get(t.Context(), me(), idle.ID)
		if err != nil {
			t.Fatal(err)
		}
		if sb.State == arenero.Hibernated {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is %s", sb.State)
		}
	}
	stateIs(t, h, busy.ID, arenero.Running)
	if out := py(t, h, idle.ID, "print(x)"); out != "1" {
		t.Errorf("%q", out)
	}
}

// Lifetimes: over, a sandbox is ended or put to sleep, as was asked; the clock of
// a run stands still in a sleeping sandbox.
func TestDeadlines(t *testing.T) {
	h, _ := newHome(t).open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{Lifetime: time.Second, OnTimeout: arenero.PauseOnTimeout})
	g, err := h.Guest(t.Context(), me(), sb.ID, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(t.Context(), arenero.Command{Argv: []string{"/bin/sh", "-c", "sleep 3; echo done"}, Timeout: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if got, err := h.Get(t.Context(), me(), sb.ID); err != nil || got.State == arenero.Paused {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it never slept")
		}
	}
	time.Sleep(8 * time.Second) // longer than the run may take
	life := time.Minute
	if _, err := h.Update(t.Context(), me(), sb.ID, arenero.Patch{Lifetime: &life}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Resume(t.Context(), me(), sb.ID); err != nil {
		t.Fatal(err)
	}
	c := host.NewCollector(1000)
	if err := host.CollectProcess(p, c, nil); err != nil || c.Result().Stdout != "done\n" || c.Result().ExitReason != arenero.Exited {
		t.Errorf("%+v %v", c.Result(), err)
	}
}
