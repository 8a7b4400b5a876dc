package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// A program is one `arenero run` under way.
type program struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr *bytes.Buffer
}

// data is a data folder of a test's own that borrows the images.
func data(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(testData(), "images"), filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, bin, data, code string, flags ...string) *program {
	t.Helper()
	p := &program{stderr: &bytes.Buffer{}}
	p.cmd = exec.Command(bin, append([]string{"run", "--data", data, "-"}, flags...)...)
	p.cmd.Stdin = strings.NewReader(code)
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// line waits for a line of output while the program runs.
func (p *program) line(t *testing.T, want string) {
	t.Helper()
	if got, err := p.out.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("got %q, %v, want %q\n%s", got, err, want, p.stderr)
	}
}

// end reads the rest of the output and returns it with the exit status.
func (p *program) end(t *testing.T) (string, int) {
	t.Helper()
	rest, err := io.ReadAll(p.out)
	if err != nil {
		t.Fatal(err)
	}
	err = p.cmd.Wait()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	return string(rest), p.cmd.ProcessState.ExitCode()
}

// nothingLeft checks that a run left neither folders nor processes.
func nothingLeft(t *testing.T, data string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(data, "runs", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if ps := processesOf(t, data); len(ps) > 0 {
		t.Errorf("still running: %v", ps)
	}
}

func TestInterrupt(t *testing.T) {
	bin := built
	needImage(t)
	dir := data(t)

	t.Run("once", func(t *testing.T) {
		p := start(t, bin, dir, "print('up', flush=True)\nimport time\ntime.sleep(600)")
		p.line(t, "up") // output comes while the program runs
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if _, code := p.end(t); code != 130 {
			t.Errorf("exit status %d\n%s", code, p.stderr)
		}
		nothingLeft(t, dir)
	})
	t.Run("caught", func(t *testing.T) {
		p := start(t, bin, dir, "import sys, time\nprint('up', flush=True)\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('caught'); sys.exit(3)")
		p.line(t, "up")
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if out, code := p.end(t); code != 3 || out != "caught\n" {
			t.Errorf("exit status %d, %q\n%s", code, out, p.stderr)
		}
	})
	t.Run("twice", func(t *testing.T) {
		p := start(t, bin, dir, "import time\nprint('up', flush=True)\nwhile True:\n  try:\n    while True: time.sleep(0.01)\n  except KeyboardInterrupt: print('no', flush=True)")
		p.line(t, "up")
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		p.line(t, "no")
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if _, code := p.end(t); code != 130 {
			t.Errorf("exit status %d\n%s", code, p.stderr)
		}
		nothingLeft(t, dir)
	})
	t.Run("killed by force", func(t *testing.T) {
		p := start(t, bin, dir, "print('up', flush=True)\nimport time\ntime.sleep(600)")
		p.line(t, "up")
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.end(t)
		if left, _ := filepath.Glob(filepath.Join(dir, "runs", "*")); len(left) == 0 {
			t.Error("nothing was left to sweep: the test shows nothing")
		}
		// The next run sweeps what this one had to leave.
		if out, code := start(t, bin, dir, "print('next')").end(t); code != 0 || out != "next\n" {
			t.Errorf("exit status %d, %q", code, out)
		}
		nothingLeft(t, dir)
	})
	t.Run("reader gone", func(t *testing.T) {
		cmd := exec.Command("sh", "-c", `"$0" run --data "$1" -- yes | head -n 1`, bin, dir)
		if out, err := cmd.Output(); err != nil || string(out) != "y\n" {
			t.Errorf("%q, %v", out, err)
		}
		nothingLeft(t, dir)
	})
}

// TestTerminal shows what a person sees: nothing from inside has power over the
// terminal.
func TestTerminal(t *testing.T) {
	bin := built
	needImage(t)
	dir := data(t)
	see := func(flags ...string) string {
		args := append([]string{"run", "--data", dir}, flags...)
		cmd := exec.Command(bin, append(args, "--", "printf", `\033[31mred\033[0m \033]0;title\007\033[2Jend\n`)...)
		tty, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		var out bytes.Buffer
		_, _ = io.Copy(&out, tty) // EIO is the end of a terminal
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %q", err, out.String())
		}
		return out.String()
	}
	if got := see(); !strings.Contains(got, "\x1b[31mred") || strings.Contains(got, "\x1b]0") || strings.Contains(got, "\x1b[2J") || !strings.Contains(got, "␛[2Jend") {
		t.Errorf("a terminal was sent %q", got)
	}
	if got := see("--raw"); !strings.Contains(got, "\x1b[2Jend") {
		t.Errorf("--raw was sent %q", got)
	}
}

// TestTimeoutIsPrompt shows that a timeout does not wait for the program.
func TestTimeoutIsPrompt(t *testing.T) {
	bin := built
	needImage(t)
	begin := time.Now()
	p := start(t, bin, data(t), "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True:\n  try: time.sleep(600)\n  except BaseException: pass", "--timeout", "2")
	p.line(t, "up")
	if _, code := p.end(t); code != 124 {
		t.Errorf("exit status %d\n%s", code, p.stderr)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
