package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// A thread that counts, an open file and a variable: what a sleeping sandbox must
// not lose.
const living = `
import threading, time, os, random
n = 0
def count():
    global n
    while True:
        n += 1
        time.sleep(0.01)
threading.Thread(target=count, daemon=True).start()
f = open('/tmp/log', 'w+'); f.write('written before\n'); f.flush()
x = {'a': [1, 2, 3]}
`

func TestSleep(t *testing.T) {
	home := newHome(t)
	h, _ := home.open(t, host.Config{})
	sb := mk(t, h, arenero.Spec{Env: map[string]string{"TOKEN": "t0"}})
	py(t, h, sb.ID, living)
	for name, sleep := range map[string]func() (arenero.Sandbox, error){
		"in memory": func() (arenero.Sandbox, error) { return h.Pause(t.Context(), me(), sb.ID) },
		"on disk":   func() (arenero.Sandbox, error) { return h.Hibernate(t.Context(), me(), sb.ID) },
		"on disk, from memory": func() (arenero.Sandbox, error) {
			if _, err := h.Pause(t.Context(), me(), sb.ID); err != nil {
				return arenero.Sandbox{}, err
			}
			return h.Hibernate(t.Context(), me(), sb.ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := py(t, h, sb.ID, "print(n)")
			start := time.Now()
			got, err := sleep()
			t.Logf("asleep after %v", time.Since(start))
			if err != nil || got.State != arenero.Paused && got.State != arenero.Hibernated {
				t.Fatalf("%+v %v", got, err)
			}
			if again, err := sleep(); err != nil || again.State != got.State {
				t.Errorf("asleep twice: %s %v", again.State, err)
			}
			time.Sleep(300 * time.Millisecond)
			start = time.Now()
			py(t, h, sb.ID, "x['a'].append(4)") // any use wakes it
			t.Logf("awake after %v", time.Since(start))
			stateIs(t, h, sb.ID, arenero.Running)
			after := py(t, h, sb.ID, "time.sleep(0.1); print(n)")
			if before >= after && len(before) >= len(after) {
				t.Errorf("its thread stands still: %s then %s", before, after)
			}
			if out := py(t, h, sb.ID, "f.seek(0); print(f.read(), os.environ['TOKEN'], abs(time.time() - "+fmt.Sprint(time.Now().Unix())+") < 5)"); out != "written before\n t0 True" {
				t.Errorf("%q", out)
			}
		})
	}
	if py(t, h, sb.ID, "print(len(x['a']))") != "6" {
		t.Error("variables are lost")
	}
	if ids, err := os.ReadDir(filepath.Join(home.dir, "states")); err == nil && len(ids) > 1 {
		t.Errorf("states are left: %v", ids)
	}
}
