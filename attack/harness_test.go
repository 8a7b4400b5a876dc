// Package attack tries to break out of real sandboxes and to harm the machine
// and a neighbour. Everything goes through the public HTTP door of the real
// program; what a guest says is never enough to pass where the host can look
// for itself.
package attack

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

// house is the daemon under attack, shared by all tests: a sandbox of one test
// is the neighbour of another.
var house struct {
	*client.Client

	pid  int
	data string
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "arenero")
	for out, pkg := range map[string]string{"../guest/bin/guest": "../cmd/guest"} {
		if b, err := command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%w: %s", err, b)
		}
	}
	if b, err := command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../cmd/arenero").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, b)
	}
	images := os.Getenv("ARENERO_TEST_DATA")
	if images == "" {
		images = "/var/cache/arenero-test"
	}
	if b, err := command(bin, "image", "build", "python", "--data", images).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, b)
	}
	house.data = filepath.Join(dir, "data")
	if err := os.Mkdir(house.data, 0o700); err != nil {
		return 0, err
	}
	if err := os.Symlink(filepath.Join(images, "images"), filepath.Join(house.data, "images")); err != nil {
		return 0, err
	}
	daemon := command(bin, "serve", "--data", house.data, "--listen", "127.0.0.1:0", "--pool-max", "0", "--on-stop", "kill")
	daemon.Stderr = os.Stderr
	out, err := daemon.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := daemon.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		return 0, fmt.Errorf("the daemon said %q, %w", line, err)
	}
	key, err := command(bin, "key", "show", "--data", house.data).Output()
	if err != nil {
		return 0, err
	}
	house.Client, house.pid = client.New(url, strings.TrimSpace(string(key))), daemon.Process.Pid
	return m.Run(), nil
}

func command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	return c
}

// sandbox makes one for a test.
func sandbox(t *testing.T, l arenero.Limits) *client.Sandbox {
	t.Helper()
	sb, err := house.Create(t.Context(), client.Spec{Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := sb.Kill(ctx); err != nil && arenero.CodeOf(err) != arenero.NotFound && arenero.CodeOf(err) != arenero.Conflict {
			t.Error("kill:", err)
		}
	})
	return sb
}

func python(t *testing.T, sb *client.Sandbox, code string, timeout time.Duration) arenero.Result {
	t.Helper()
	r, err := sb.Exec(t.Context(), client.Command{Argv: []string{"python3", "-c", code}, Timeout: timeout})
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	return r
}

func cell(t *testing.T, sb *client.Sandbox, code string, timeout time.Duration) arenero.Result {
	t.Helper()
	r, err := sb.Kernel("python").Execute(t.Context(), client.Cell{Code: code, Timeout: timeout})
	if err != nil {
		t.Fatalf("execute: %v", err)
	}
	return r
}

// lives asserts that a sandbox still answers, process and kernel both.
func lives(t *testing.T, who string, sb *client.Sandbox) {
	t.Helper()
	if r := python(t, sb, "print(6*7)", 30*time.Second); r.Stdout != "42\n" {
		t.Errorf("%s does not run processes any more: %+v", who, r)
	}
	if r := cell(t, sb, "6*7", 30*time.Second); r.Output != "42\n" {
		t.Errorf("%s does not run cells any more: %+v", who, r)
	}
}

// sentry is the host process that is a sandbox's kernel.
func sentry(t *testing.T, sb *client.Sandbox) int {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err == nil && strings.HasPrefix(string(raw), "runsc-sandbox\x00") && strings.Contains(string(raw), "\x00box-"+sb.ID()[4:12]+"-") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	t.Fatal("no sentry of", sb.ID())
	return 0
}

// status is a line of /proc/PID/status on the host.
func status(t *testing.T, pid int, key string) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && k == key {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no %s in status of %d", key, pid)
	return ""
}

func kib(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.Fields(s)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * 1024
}
