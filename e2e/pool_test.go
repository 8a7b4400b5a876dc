package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

func pooled(t *testing.T, h *host.Host, want int) arenero.Pool {
	t.Helper()
	var last []arenero.Pool
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		all, err := h.Pools(t.Context(), me())
		if err != nil {
			t.Fatal(err)
		}
		if last = all; len(all) == 1 && all[0].Ready == want && all[0].Making == 0 {
			return all[0]
		}
	}
	t.Fatalf("the pool never had %d ready: %+v", want, last)
	return arenero.Pool{}
}

// boxes are the engine's folders of boxes.
func (m home) boxes(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(m.dir, "boxes", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// What comes out of the pool is a sandbox like any other, and no two have
// anything in common but the image.
func TestPool(t *testing.T) {
	home := newHome(t)
	h, shut := home.open(t, host.Config{PoolMax: 4})
	if err := h.SetPool(t.Context(), me(), arenero.Pool{Image: "python", Min: 2, Max: 2}); err != nil {
		t.Fatal(err)
	}
	pooled(t, h, 2)
	seen := map[string]bool{}
	for i := range 4 {
		if i == 2 { // one that nobody had is dead: it is not handed out
			p := pooled(t, h, 2)
			kill(t, home, "pool-")
			for end := time.Now().Add(20 * time.Second); len(home.boxes(t)) > 0 && p.Ready == 2 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				all, err := h.Pools(t.Context(), me())
				if err != nil {
					t.Fatal(err)
				}
				p = all[0]
			}
			pooled(t, h, 2)
		}
		start := time.Now()
		sb := mk(t, h, arenero.Spec{
			Env: map[string]string{"WHO": "me"}, Hostname: "own-name", Labels: map[string]string{"a": "b"},
			Limits: arenero.Limits{Processes: 40, Output: 4096},
		})
		took := time.Since(start)
		if sb.From != "pool" || sb.State != arenero.Running || sb.Hostname != "own-name" {
			t.Errorf("%+v", sb)
		}
		out := py(t, h, sb.ID, `
import os, socket, random, numpy, shutil
print(os.environ['WHO'], socket.gethostname(), os.getcwd(), shutil.disk_usage('/workspace').total)
print(random.random(), numpy.random.random(), os.urandom(8).hex())`)
		t.Logf("from the pool in %v, used after %v", took, time.Since(start))
		lines := strings.Split(out, "\n")
		if lines[0] != "me own-name /workspace 1073741824" {
			t.Errorf("%q", out)
		}
		for r := range strings.FieldsSeq(lines[1]) {
			if seen[r] {
				t.Errorf("the same random number twice: %s", r)
			}
			seen[r] = true
		}
		if got, err := h.Get(t.Context(), me(), sb.ID); err != nil || got.State != arenero.Running || got.From != "pool" {
			t.Errorf("%+v %v", got, err)
		}
		if err := h.Kill(t.Context(), me(), sb.ID); err != nil {
			t.Error(err)
		}
		pooled(t, h, 2)
	}
	// Another size is none of the pool's business, and a prepared box helps it.
	mk(t, h, arenero.Spec{Limits: arenero.Limits{Memory: 512 * arenero.MiB}})
	shut()
	if left := home.boxes(t); len(left) != 0 {
		t.Errorf("boxes are left: %v", left)
	}
	h, _ = home.open(t, host.Config{}) // it was asked for, so it is there again
	pooled(t, h, 2)
}

// kill ends the Sentry of one box whose name begins so.
func kill(t *testing.T, m home, prefix string) {
	t.Helper()
	all := sentries(t, m, prefix)
	if len(all) == 0 {
		t.Fatal("no box " + prefix)
	}
	proc, err := os.FindProcess(all[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Kill(); err != nil {
		t.Fatal(err)
	}
}
