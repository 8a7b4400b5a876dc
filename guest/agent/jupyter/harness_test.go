package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/arenero/arenero"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// python is an interpreter with ipykernel and matplotlib: the one that is named,
// the system's, or one made once in the cache.
var python = sync.OnceValues(func() (string, error) {
	usable := func(p string) bool {
		return p != "" && exec.Command(p, "-c", "import ipykernel, matplotlib, numpy, pandas").Run() == nil
	}
	for _, p := range []string{os.Getenv("ARENERO_TEST_PYTHON"), "/usr/bin/python3"} {
		if usable(p) {
			return p, nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	venv := filepath.Join(cache, "arenero-test", "venv")
	p := filepath.Join(venv, "bin", "python3")
	if usable(p) {
		return p, nil
	}
	if out, err := exec.Command("python3", "-m", "venv", "--clear", venv).CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	if out, err := exec.Command(p, "-m", "pip", "install", "-q", "ipykernel", "matplotlib", "numpy", "pandas").CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return p, nil
})

// process is a Proc of the test's own: a child in a session of its own.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	exit ProcExit
}

func (p *process) PID() int              { return p.cmd.Process.Pid }
func (p *process) Done() <-chan struct{} { return p.done }
func (p *process) Exit() ProcExit        { return p.exit }
func (p *process) Signal(sig os.Signal) error {
	return syscall.Kill(-p.PID(), sig.(syscall.Signal))
}
func (p *process) KillTree() error { return syscall.Kill(-p.PID(), syscall.SIGKILL) }

func startProcess(_ context.Context, c Cmd) (Proc, error) { return startAs(c, uint32(os.Geteuid())) }

func startAs(c Cmd, uid uint32) (Proc, error) {
	path := c.Argv[0]
	if !strings.Contains(path, "/") {
		var err error
		if path, err = exec.LookPath(path); err != nil {
			return nil, arenero.Errorf(arenero.Invalid, "start process", "", "%w", err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd := &exec.Cmd{Path: path, Args: c.Argv, Env: c.Env, Dir: c.Dir, Stdout: w, Stderr: w,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if int(uid) != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if err := cmd.Start(); err != nil {
		r.Close()
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			c.Output.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		cmd.Wait()
		r.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		<-copied
		r.Close()
		p.exit.Code = cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			p.exit.Code = 128 + int(ws.Signal())
			p.exit.Signal = map[syscall.Signal]string{syscall.SIGKILL: "SIGKILL", syscall.SIGSEGV: "SIGSEGV"}[ws.Signal()]
		}
		close(p.done)
	}()
	return p, nil
}

// manager makes a Manager with a Python kernelspec, and one kernel "python".
func manager(t testing.TB) *Manager {
	t.Helper()
	m := bareManager(t, nil)
	start(t, m, arenero.KernelRequest{Name: "python"})
	return m
}

// bareManager makes a Manager with a Python kernelspec and those of specs.
func bareManager(t testing.TB, specs map[string]spec) *Manager {
	t.Helper()
	py, err := python()
	if err != nil {
		t.Fatalf("no python with ipykernel: %v", err)
	}
	all := map[string]spec{"python3": {
		Argv: []string{py, "-m", "ipykernel_launcher", "-f", "{connection_file}"}, Display: "Python 3", Language: "python",
	}}
	maps.Copy(all, specs)
	dir := t.TempDir()
	for name, s := range all {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	work := t.TempDir()
	run, err := os.MkdirTemp("", "jk") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{
		Start: startProcess, SpecDirs: []string{dir}, RunDir: run,
		Workdir: func() string { return work },
		Env: func() []string {
			return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + work, "GREETING=hello"}
		},
	})
	t.Cleanup(func() {
		m.Close()
		left, _ := os.ReadDir(run)
		for _, e := range left {
			t.Errorf("left behind: %s", e.Name())
		}
		os.RemoveAll(run)
	})
	return m
}

func start(t testing.TB, m *Manager, r arenero.KernelRequest) arenero.KernelInfo {
	t.Helper()
	info, err := m.Start(t.Context(), r)
	if err != nil {
		t.Fatalf("start: %v (%s)", err, arenero.HintOf(err))
	}
	return info
}

// outcome is all that a cell did.
type outcome struct {
	stdout, stderr string
	displays       []*Display
	updates        []*Display
	clears         int
	inputs         []arenero.InputRequest
	err            *arenero.RunError
	end            arenero.KernelEnd
	order          []string
}

func (o outcome) main() string {
	for _, d := range o.displays {
		if d.Main {
			return d.MIME["text/plain"]
		}
	}
	return ""
}

func (o *outcome) take(e Event) {
	switch {
	case e.Stdout != nil:
		o.stdout += string(e.Stdout)
		o.order = append(o.order, "out:"+string(e.Stdout))
	case e.Stderr != nil:
		o.stderr += string(e.Stderr)
		o.order = append(o.order, "err:"+string(e.Stderr))
	case e.Display != nil:
		o.displays = append(o.displays, e.Display)
		o.order = append(o.order, "display")
	case e.Update != nil:
		o.updates = append(o.updates, e.Update)
	case e.Clear != nil:
		o.clears++
	case e.Input != nil:
		o.inputs = append(o.inputs, *e.Input)
	case e.Error != nil:
		o.err = e.Error
	case e.End != nil:
		o.end = *e.End
	}
}

// do runs a cell of the kernel "python" if no other is named.
func do(t testing.TB, m *Manager, e arenero.Execute) outcome {
	t.Helper()
	if e.Kernel == "" {
		e.Kernel = "python"
	}
	if e.Timeout == 0 {
		e.Timeout = time.Minute // nothing hangs
	}
	var o outcome
	err := m.Execute(t.Context(), e, nil, func(ev Event) error { o.take(ev); return nil })
	if err != nil {
		t.Fatalf("execute: %v (%s)", err, arenero.HintOf(err))
	}
	if o.end.Reason == "" {
		t.Fatal("no end")
	}
	return o
}

func code(t testing.TB, m *Manager, c string) outcome {
	t.Helper()
	return do(t, m, arenero.Execute{Code: c})
}
