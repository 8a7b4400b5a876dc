package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// Copies have the memory of their parent and nothing of its identity: not its
// name, not its random numbers, neither Python's nor numpy's nor the kernel's.
func TestFork(t *testing.T) {
	h, _ := newHome(t).open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{Labels: map[string]string{"team": "a"}, Env: map[string]string{"KEEP": "1", "SWAP": "old"}})
	py(t, h, sb.ID, living+"\nimport numpy")
	for _, from := range []string{"running", "paused", "hibernated"} {
		t.Run(from, func(t *testing.T) {
			var err error
			switch from {
			case "paused":
				_, err = h.Pause(t.Context(), me(), sb.ID)
			case "hibernated":
				_, err = h.Hibernate(t.Context(), me(), sb.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			forks, err := h.Fork(t.Context(), me(), sb.ID, 3, arenero.Spec{Env: map[string]string{"SWAP": "new"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("3 forks after %v", time.Since(start))
			stateIs(t, h, sb.ID, arenero.State(from)) // it was not woken
			seen := map[string]string{}
			for _, f := range forks {
				if f.Parent != sb.ID || f.From != "fork" || f.Labels["team"] != "a" || f.ID == sb.ID {
					t.Errorf("%+v", f)
				}
				out := py(t, h, f.ID, `
import socket
print(x['a'], os.environ['KEEP'], os.environ['SWAP'], socket.gethostname(), abs(time.time() - `+fmt.Sprint(time.Now().Unix())+`) < 10)
print(random.random(), numpy.random.random(), os.urandom(8).hex(), open('/proc/sys/kernel/random/uuid').read().strip())
a = n; time.sleep(0.1); print(n > a)`)
				lines := strings.Split(out, "\n")
				if len(lines) != 3 || lines[0] != "[1, 2, 3] 1 new "+f.ID+" True" || lines[2] != "True" {
					t.Fatalf("%q", out)
				}
				for r := range strings.FieldsSeq(lines[1]) {
					if was := seen[r]; was != "" {
						t.Errorf("%s and %s drew the same %s", was, f.ID, r)
					}
					seen[r] = f.ID
				}
				if err := h.Kill(t.Context(), me(), f.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if out := py(t, h, sb.ID, "print(x, os.environ['SWAP'])"); out != "{'a': [1, 2, 3]} old" {
		t.Errorf("the parent has changed: %q", out)
	}
	if _, err := h.Fork(t.Context(), me(), sb.ID, 0, arenero.Spec{}); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("no copies: %v", err)
	}
}

func TestSnapshot(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{})
	py(t, h, sb.ID, living)
	one, err := h.Snapshot(t.Context(), me(), sb.ID, "one")
	if err != nil || one.Size < 1<<20 || !one.Usable {
		t.Fatalf("%+v %v", one, err)
	}
	if out := py(t, h, sb.ID, "x['b'] = 1; a = n; time.sleep(0.1); print(n > a)"); out != "True" {
		t.Errorf("it does not go on: %q", out)
	}
	if _, err := h.Pause(t.Context(), me(), sb.ID); err != nil {
		t.Fatal(err)
	}
	two, err := h.Snapshot(t.Context(), me(), sb.ID, "two")
	if err != nil {
		t.Fatal(err)
	}
	stateIs(t, h, sb.ID, arenero.Paused)

	// As a template, for another sandbox.
	other := mk(t, h, arenero.Spec{Snapshot: one.ID})
	if out := py(t, h, other.ID, "print(x)"); out != "{'a': [1, 2, 3]}" || other.From != "snapshot" || other.Snapshot != one.ID {
		t.Errorf("%q %+v", out, other)
	}
	if out := py(t, h, mk(t, h, arenero.Spec{Snapshot: two.ID}).ID, "print(x)"); out != "{'a': [1, 2, 3], 'b': 1}" {
		t.Errorf("%q", out)
	}
	// In place: same id, memory and files of then.
	py(t, h, sb.ID, "open('/workspace/new', 'w').write('x')")
	back, err := h.Rollback(t.Context(), me(), sb.ID, one.ID)
	if err != nil || back.ID != sb.ID || back.State != arenero.Running {
		t.Fatalf("%+v %v", back, err)
	}
	if out := py(t, h, sb.ID, "print(x, os.path.exists('/workspace/new'))"); out != "{'a': [1, 2, 3]} False" {
		t.Errorf("%q", out)
	}
	if _, err := h.Rollback(t.Context(), me(), other.ID, one.ID); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("another's snapshot: %v", err)
	}

	// A flipped bit and a cut tail are found before anything is restored.
	file := filepath.Join(home.dir, "states", one.ID, "box", "pages.img")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	for what, b := range map[string][]byte{"bit": raw, "tail": raw[:len(raw)-4096]} {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Create(t.Context(), me(), arenero.Spec{Snapshot: one.ID}); arenero.CodeOf(err) != arenero.Internal {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := h.Rollback(t.Context(), me(), sb.ID, one.ID); err == nil {
			t.Errorf("%s: it was rolled back", what)
		}
		if out := py(t, h, sb.ID, "print(x)"); out != "{'a': [1, 2, 3]}" {
			t.Errorf("%s: after a rollback that failed: %q", what, out)
		}
	}
	if n, err := h.GetSnapshot(t.Context(), me(), one.ID); err != nil || n.Usable || n.Why == "" {
		t.Errorf("%+v %v", n, err)
	}
	for _, n := range []arenero.Snapshot{one, two} {
		if err := h.RemoveSnapshot(t.Context(), me(), n.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.GetSnapshot(t.Context(), me(), two.ID); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("removed: %v", err)
	}
}

// A full disk takes nothing from a sandbox: it goes on, and no half state is left.
func TestSnapshotOnFullDisk(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{})
	py(t, h, sb.ID, living)
	small(t, filepath.Join(home.dir, "states"), 16<<20)
	if _, err := h.Snapshot(t.Context(), me(), sb.ID, ""); arenero.CodeOf(err) != arenero.Exhausted {
		t.Errorf("snapshot: %v", err)
	}
	if out := py(t, h, sb.ID, "a = n; time.sleep(0.1); print(n > a)"); out != "True" {
		t.Errorf("after a snapshot that failed: %q", out)
	}
	if _, err := h.Hibernate(t.Context(), me(), sb.ID); arenero.CodeOf(err) != arenero.Exhausted {
		t.Errorf("hibernate: %v", err)
	}
	stateIs(t, h, sb.ID, arenero.Running)
	if out := py(t, h, sb.ID, "a = n; time.sleep(0.1); print(n > a)"); out != "True" {
		t.Errorf("after a hibernation that failed: %q", out)
	}
	if all, err := h.Snapshots(context.Background(), me(), "", "", 0); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
}
