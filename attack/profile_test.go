package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

// What the host sees of a sandbox.
func TestSentryHasNoRights(t *testing.T) {
	sb := sandbox(t, arenero.Limits{})
	pid := sentry(t, sb)
	for key, want := range map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
		if got := status(t, pid, key); got != want {
			t.Errorf("%s of the Sentry is %s, want %s", key, got, want)
		}
	}
	if uid := strings.Fields(status(t, pid, "Uid")); uid[0] == "0" || uid[1] == "0" {
		t.Errorf("the Sentry runs as root: %v", uid)
	}
	// Its root is empty: no file of the host can be named.
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "proc", "etc", "dev", "sys", "tmp":
		default:
			t.Errorf("the Sentry's root holds %s", e.Name())
		}
	}
	// Its streams are pipes, never a file that a guest could rewrite.
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		link := fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "/memfd:") || strings.HasPrefix(target, "/proc/") {
			continue // no file of a file system
		}
		info, err := os.Stat(link)
		if err != nil || !info.Mode().IsRegular() || strings.HasSuffix(target, "(deleted)") {
			continue
		}
		// Images and snapshots, for reading: the last octal digit of the flags is
		// the access mode, 0 for O_RDONLY.
		flags, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(flags), "flags:\t")
		if line, _, _ := strings.Cut(rest, "\n"); !strings.HasSuffix(line, "0") {
			t.Errorf("the Sentry can write %s (flags %s)", target, line)
		}
	}
}

// TestContained runs the table of attacks, each as a process and, where it makes
// a difference, in a kernel. A row is contained when the code prints what is
// expected and the host's canaries are untouched.
func TestContained(t *testing.T) {
	secret := fmt.Sprintf("canary-%d", time.Now().UnixNano())
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// A service of the host on every address.
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var hits atomic.Int64
	go func() { // ends when l is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			hits.Add(1)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())

	sb := sandbox(t, arenero.Limits{})
	tried, contained := 0, 0
	for _, a := range attacks {
		tried++
		code := strings.NewReplacer("@FILE@", file, "@PORT@", port, "@DIR@", dir).Replace(a.code)
		r := python(t, sb, prelude+code, time.Minute)
		if got := strings.TrimSpace(r.Stdout); got != a.want {
			t.Errorf("%s: printed %q, want %q (stderr %.300s)", a.id, got, a.want, r.Stderr)
			continue
		}
		if strings.Contains(r.Stdout+r.Stderr, secret) {
			t.Errorf("%s: read the host's secret", a.id)
			continue
		}
		contained++
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d connections reached the host", n)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != secret {
		t.Errorf("the host's file is changed: %q, %v", raw, err)
	}
	lives(t, "the sandbox", sb)
	t.Logf("tried %d, contained %d, open %d", tried, contained, tried-contained)

	for _, check := range []string{"CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"} {
		r := cell(t, sb, fmt.Sprintf("print([l.split()[1] for l in open('/proc/self/status') if l.startswith('%s')][0])", check), time.Minute)
		if r.Stdout != "0000000000000000\n" {
			t.Errorf("%s of a kernel: %q", check, r.Stdout)
		}
	}
}

// The agent may not be reached through the door's own paths either.
func TestPathsOfTheDoor(t *testing.T) {
	sb := sandbox(t, arenero.Limits{})
	for _, path := range []string{"/proc/1/environ", "/proc/1/mem", "/proc/1/root/etc/shadow", "/etc/shadow", "/.arenero/../proc/1/maps"} {
		if f, err := sb.ReadFile(t.Context(), path); err == nil {
			buf := make([]byte, 10)
			n, _ := f.Read(buf)
			f.Close()
			if n > 0 {
				t.Errorf("%s can be read: %q", path, buf[:n])
			}
		}
	}
	for _, path := range []string{"/etc/passwd", "/usr/bin/python3", "/.arenero/guest", "/proc/sys/kernel/hostname", "/x"} {
		if err := sb.WriteFile(t.Context(), path, 0o644, strings.NewReader("x")); err == nil {
			t.Errorf("%s can be written", path)
		}
	}
	// A link to a secret gives nothing that the user could not have.
	if _, err := sb.Exec(t.Context(), client.Command{Argv: []string{"ln", "-s", "/etc/shadow", "/workspace/link"}}); err != nil {
		t.Fatal(err)
	}
	if f, err := sb.ReadFile(t.Context(), "/workspace/link"); err == nil {
		f.Close()
		t.Error("a link to a secret can be read through the door")
	}
	// A pipe does not hold the door up.
	if _, err := sb.Exec(t.Context(), client.Command{Argv: []string{"mkfifo", "/workspace/pipe"}}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if f, err := sb.ReadFile(t.Context(), "/workspace/pipe"); err == nil {
		f.Close()
		t.Error("a pipe can be read as a file")
	}
	if time.Since(start) > 10*time.Second {
		t.Error("a pipe held the door up")
	}
}
