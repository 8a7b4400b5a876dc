package jupyter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

func TestInterrupt(t *testing.T) {
	m := manager(t)
	interrupted := func(c string, when func(*outcome) bool) outcome {
		t.Helper()
		var o outcome
		var once sync.Once
		hit := func() {
			once.Do(func() {
				if err := m.Interrupt(t.Context(), "python"); err != nil {
					t.Error(err)
				}
			})
		}
		if when == nil { // as early as can be: when the kernel has hardly got the cell
			go func() {
				for m.List()[0].State != "busy" {
					time.Sleep(100 * time.Microsecond)
				}
				hit()
			}()
		}
		err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: c, Timeout: 20 * time.Second}, nil, func(e Event) error {
			o.take(e)
			if when != nil && when(&o) {
				hit()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := interrupted("x = 1\nprint('go', flush=True)\nimport time\ntime.sleep(60)", func(o *outcome) bool { return o.stdout != "" })
	if o.end.Reason != arenero.Cancelled || o.err == nil || o.err.Name != "KeyboardInterrupt" {
		t.Errorf("got %+v %+v", o.end, o.err)
	}
	if o = interrupted("time.sleep(60)", nil); o.end.Reason != arenero.Cancelled {
		t.Errorf("at once: %+v", o.end)
	}
	if o = interrupted("while True: pass", nil); o.end.Reason != arenero.Cancelled {
		t.Errorf("at once, a loop: %+v", o.end)
	}
	if o = code(t, m, "x"); o.main() != "1" {
		t.Errorf("variables: %+v", o)
	}
	// An idle kernel does not mind.
	if err := m.Interrupt(t.Context(), "python"); err != nil {
		t.Error(err)
	}
	if o = code(t, m, "import time; time.sleep(0.2); x"); o.main() != "1" {
		t.Errorf("after an interrupt of nothing: %+v", o)
	}
}

func TestInterruptByMessage(t *testing.T) {
	py, err := python()
	if err != nil {
		t.Fatal(err)
	}
	m := bareManager(t, map[string]spec{"msg": {
		Argv: []string{py, "-m", "ipykernel_launcher", "-f", "{connection_file}"}, Language: "python", Interrupt: "message",
	}})
	start(t, m, arenero.KernelRequest{Name: "python", Language: "msg"})
	o := do(t, m, arenero.Execute{Code: "x = 1\nimport time\ntime.sleep(60)", Timeout: time.Second})
	if o.end.Reason != arenero.TimedOut {
		t.Errorf("got %+v", o.end)
	}
	if o = code(t, m, "x"); o.main() != "1" {
		t.Errorf("variables: %+v", o)
	}
}

func TestTimeout(t *testing.T) {
	m := manager(t)
	begin := time.Now()
	o := do(t, m, arenero.Execute{Code: "x = 2\nprint('part', flush=True)\nimport time\ntime.sleep(60)", Timeout: 500 * time.Millisecond})
	if o.end.Reason != arenero.TimedOut || o.end.ExitCode != 124 || o.stdout != "part\n" || o.err != nil {
		t.Errorf("got %+v", o)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if o = code(t, m, "x"); o.main() != "2" {
		t.Errorf("variables: %+v", o)
	}
	begin = time.Now()
	o = do(t, m, arenero.Execute{Timeout: 500 * time.Millisecond, Code: `
print('stubborn', flush=True)
while True:
    try:
        while True: time.sleep(1)
    except BaseException: pass`})
	if o.end.Reason != arenero.TimedOut || o.end.ExitCode != 124 || o.stdout != "stubborn\n" {
		t.Errorf("got %+v", o)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	on := func(Event) error { return nil }
	err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: "1"}, nil, on)
	if arenero.CodeOf(err) != arenero.Conflict || arenero.HintOf(err) == "" {
		t.Errorf("a dead kernel: %v", err)
	}
	if s := m.List()[0].State; s != "dead" {
		t.Errorf("state %q", s)
	}
	if err := m.Restart(t.Context(), "python"); err != nil {
		t.Fatal(err)
	}
	if o = code(t, m, "x"); o.err == nil || o.err.Name != "NameError" {
		t.Errorf("after a restart: %+v", o)
	}
}

func TestDeath(t *testing.T) {
	for _, c := range []struct {
		code   string
		code2  int
		signal string
	}{
		{"os._exit(3)", 3, ""},
		{"os.kill(os.getpid(), 9)", 137, "SIGKILL"},
		{"import ctypes; ctypes.string_at(0)", 139, "SIGSEGV"},
		{"get_ipython().kernel.do_shutdown(False); os._exit(0)", 0, ""},
	} {
		t.Run(c.code, func(t *testing.T) {
			m := manager(t)
			var died time.Time
			o := do(t, m, arenero.Execute{Code: "import os, sys\nprint('before'); sys.stdout.flush()\nimport time; time.sleep(0.2)\n" + c.code})
			died = time.Now()
			if o.end.Reason != arenero.KernelDied || o.end.ExitCode != c.code2 || o.end.Signal != c.signal {
				t.Errorf("got %+v", o.end)
			}
			if o.stdout != "before\n" {
				t.Errorf("output %q", o.stdout)
			}
			if took := o.end.Duration; took > 5*time.Second {
				t.Errorf("told after %v (%v)", took, died)
			}
		})
	}
	// A script may end so, with its own status.
	m := manager(t)
	o := do(t, m, arenero.Execute{Code: "import os\nos._exit(5)", Script: &arenero.Script{File: "s.py"}})
	if o.end.Reason != arenero.Exited || o.end.ExitCode != 5 {
		t.Errorf("script: %+v", o.end)
	}
}

func TestStopAndRestartWhileItRuns(t *testing.T) {
	m := manager(t)
	for _, act := range []func() error{
		func() error { return m.Restart(t.Context(), "python") },
		func() error { return m.Stop(t.Context(), "python") },
	} {
		var o outcome
		errs := make(chan error, 1)
		err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: "print(1, flush=True)\nimport time; time.sleep(60)"}, nil,
			func(e Event) error {
				if o.take(e); e.Stdout != nil {
					go func() { errs <- act() }()
				}
				return nil
			})
		if err != nil || o.end.Reason != arenero.WasKilled {
			t.Errorf("%v %+v", err, o.end)
		}
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if l := m.List(); len(l) != 0 {
		t.Errorf("left %v", l)
	}
	if err := m.Stop(t.Context(), "python"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("stop twice: %v", err)
	}
}

func TestSeveralKernels(t *testing.T) {
	m := bareManager(t, nil)
	a, b := t.TempDir(), t.TempDir()
	start(t, m, arenero.KernelRequest{Name: "a", Dir: a, Env: map[string]string{"WHO": "A"}})
	start(t, m, arenero.KernelRequest{Name: "b", Language: "python3", Dir: b, Env: map[string]string{"WHO": "B"}})
	for name, dir := range map[string]string{"a": a, "b": b} {
		o := do(t, m, arenero.Execute{Kernel: name, Code: "import os\nprint(os.getcwd(), os.environ['WHO'], os.environ['GREETING'])"})
		if want := dir + " " + strings.ToUpper(name) + " hello\n"; o.stdout != want {
			t.Errorf("got %q, want %q", o.stdout, want)
		}
	}
	if _, err := m.Start(t.Context(), arenero.KernelRequest{Name: "a"}); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("the name twice: %v", err)
	}
	_, err := m.Start(t.Context(), arenero.KernelRequest{Name: "c", Language: "cobol"})
	if arenero.CodeOf(err) != arenero.NotFound || !strings.Contains(arenero.HintOf(err), "python3") {
		t.Errorf("unknown language: %v (%s)", err, arenero.HintOf(err))
	}
	for _, name := range []string{"", "a/b", "..x/", "a b", strings.Repeat("x", 65), "é"} {
		if _, err := m.Start(t.Context(), arenero.KernelRequest{Name: name}); arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := m.Start(t.Context(), arenero.KernelRequest{Name: "d", Dir: "/nowhere"}); err == nil {
		t.Error("a kernel in a folder that is not there")
	}
	if l := m.List(); len(l) != 2 {
		t.Errorf("list %+v", l)
	}
	m.Close()
	if _, err := m.Start(t.Context(), arenero.KernelRequest{Name: "e"}); arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("after close: %v", err)
	}
}

// TestAnotherUser runs a kernel as somebody who may touch none of our files.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	m := bareManager(t, nil)
	if err := os.Chmod(m.cfg.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.cfg.User = func() arenero.User { return arenero.User{UID: 54321, GID: 54321, Home: "/"} }
	m.cfg.Workdir = func() string { return "/" }
	m.cfg.Start = func(ctx context.Context, c Cmd) (Proc, error) { return startAs(c, 54321) }
	start(t, m, arenero.KernelRequest{Name: "python"})
	if o := code(t, m, "import os; os.getuid()"); o.main() != "54321" {
		t.Errorf("got %+v", o)
	}
	files, err := filepath.Glob(m.cfg.RunDir + "/k*/connection.json")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if fi, err := os.Stat(files[0]); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("connection file: %v %v", fi, err)
	}
}

func TestCompleteAndInspect(t *testing.T) {
	m := manager(t)
	code(t, m, "éclair_value = [1, 2]\ndef documented():\n    '''What it does.'''\n")
	c, err := m.Complete(t.Context(), "python", "s = 'é'; éclair_v", len("s = 'é'; éclair_v"))
	if err != nil || len(c.Matches) != 1 || c.Matches[0] != "éclair_value" || c.Start != len("s = 'é'; ") || c.End != len("s = 'é'; éclair_v") {
		t.Errorf("%+v %v", c, err)
	}
	i, err := m.Inspect(t.Context(), "python", "documented", 4)
	if err != nil || !strings.Contains(i["text/plain"], "What it does.") {
		t.Errorf("%q %v", i, err)
	}
	if i, err = m.Inspect(t.Context(), "python", "unheard_of", 3); err != nil || len(i) != 0 {
		t.Errorf("%q %v", i, err)
	}
	for _, cursor := range []int{-1, 100} {
		if _, err := m.Complete(t.Context(), "python", "x", cursor); arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("cursor %d: %v", cursor, err)
		}
	}
	if o := code(t, m, "documented?"); len(o.displays) != 1 || !strings.Contains(o.displays[0].MIME["text/plain"], "What it does.") {
		t.Errorf("a question in a cell: %+v", o)
	}
}
