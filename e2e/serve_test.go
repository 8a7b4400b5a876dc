package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

// A daemon is the real program, serving.
type daemon struct {
	*client.Client

	cmd  *exec.Cmd
	data string
	log  *bytes.Buffer // its stderr; read it when the daemon has ended
}

// testData is where the images of all tests are kept, as long as the machine.
func testData() string {
	if dir := os.Getenv("ARENERO_TEST_DATA"); dir != "" {
		return dir
	}
	return "/var/cache/arenero-test"
}

// needImage makes sure that the image python is there, and warm.
func needImage(t *testing.T) {
	t.Helper()
	// Builds only if the recipe has changed, and warms only what is cold.
	if out, err := exec.Command(built, "image", "build", "python", "--data", testData()).CombinedOutput(); err != nil {
		t.Fatalf("arenero image build python: %v\n%s", err, out)
	}
}

// serve starts a daemon with a data folder of its own that borrows the images.
func serve(t *testing.T, bin string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{data: t.TempDir(), log: &bytes.Buffer{}}
	if err := os.Symlink(filepath.Join(testData(), "images"), filepath.Join(d.data, "images")); err != nil {
		t.Fatal(err)
	}
	d.start(t, bin, flags...)
	return d
}

func (d *daemon) start(t *testing.T, bin string, flags ...string) {
	t.Helper()
	d.cmd = exec.Command(bin, append([]string{"serve", "--data", d.data, "--listen", "127.0.0.1:0", "--on-stop", "kill", "--pool-max", "0"}, flags...)...)
	d.cmd.Stderr = d.log
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			d.stop(t, syscall.SIGTERM)
		}
		if t.Failed() {
			t.Logf("the daemon said:\n%s", d.log)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		t.Fatalf("the daemon did not say where it listens: %q, %v\n%s", line, err, d.log)
	}
	key, err := exec.Command(bin, "key", "show", "--data", d.data).Output()
	if err != nil {
		t.Fatal(err)
	}
	d.Client = client.New(url, strings.TrimSpace(string(key)))
}

// stop ends the daemon and waits for it.
func (d *daemon) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		if sig == syscall.SIGTERM && err != nil {
			t.Errorf("the daemon did not end well: %v", err)
		}
	case <-time.After(time.Minute):
		_ = d.cmd.Process.Kill()
		<-done
		t.Fatal("the daemon did not stop")
	}
}

func TestServe(t *testing.T) {
	bin := built
	needImage(t)
	d := serve(t, bin)
	ctx := t.Context()

	t.Run("key", func(t *testing.T) {
		info, err := os.Stat(filepath.Join(d.data, "key"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		_, err = client.New(d.URL, "arn_wrong").Execute(ctx, client.Run{Code: "1"})
		if arenero.CodeOf(err) != arenero.Unauthenticated || arenero.HintOf(err) == "" {
			t.Errorf("a wrong key: %v", err)
		}
	})
	t.Run("tutorial", func(t *testing.T) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/execute", strings.NewReader(`{"code": "print(1)\nprint(2)\n6*7"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", d.Key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), `"output":"1\n2\n42\n"`) {
			t.Errorf("%s: %s, %v", resp.Status, b, err)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		r, err := d.Execute(ctx, client.Run{Code: "print('before', flush=True)\nwhile True: pass", Timeout: time.Second})
		if err != nil || r.ExitReason != arenero.TimedOut || r.Output != "before\n" {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("state", func(t *testing.T) { testState(ctx, t, d) })
	t.Run("files", func(t *testing.T) { testFiles(ctx, t, d) })
	t.Run("run beside it", func(t *testing.T) {
		out, err := exec.Command(bin, "run", "--data", d.data, "--", "echo", "hello").CombinedOutput()
		if err != nil || string(out) != "hello\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("twice", func(t *testing.T) {
		out, err := exec.Command(bin, "serve", "--data", d.data, "--listen", "127.0.0.1:0").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "conflict") {
			t.Errorf("a second daemon on the same data: %s, %v", out, err)
		}
	})
	t.Run("stop", func(t *testing.T) { testStop(ctx, t, d) })
}

func testState(ctx context.Context, t *testing.T, d *daemon) {
	sb, err := d.Create(ctx, client.Spec{Labels: map[string]string{"for": "test"}})
	if err != nil {
		t.Fatal(err)
	}
	python := sb.Kernel("python")
	for code, want := range map[string]string{"x = 6": "", "x = 6; x * 7": "42\n"} {
		if r, err := python.Execute(ctx, client.Cell{Code: code}); err != nil || r.Output != want {
			t.Errorf("%s: %q, %v", code, r.Output, err)
		}
	}
	var printed string
	var ended bool
	for e, err := range python.Stream(ctx, client.Cell{Code: "for i in range(3): print(x + i)\n1/0"}) {
		if err != nil {
			t.Fatal(err)
		}
		printed += e.Stdout
		if e.End != nil {
			ended = e.End.Reason == arenero.RaisedError
		}
	}
	if printed != "6\n7\n8\n" || !ended {
		t.Errorf("streamed %q, ended well: %v", printed, ended)
	}
	found := false
	for other, err := range d.List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		found = found || other.ID() == sb.ID()
	}
	if !found {
		t.Error("the sandbox is not in the list")
	}
	if err := sb.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sb.Kill(ctx); err != nil {
		t.Errorf("killed twice: %v", err)
	}
	if _, err := python.Execute(ctx, client.Cell{Code: "x"}); arenero.CodeOf(err) != arenero.Conflict && arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("a dead sandbox answers: %v", err)
	}
}

func testFiles(ctx context.Context, t *testing.T, d *daemon) {
	sb, err := d.Create(ctx, client.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sb.Kill(ctx); err != nil {
			t.Error(err)
		}
	}()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	if err := sb.WriteFile(ctx, "deep/er/data.bin", 0o600, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	r, err := sb.Exec(ctx, client.Command{Argv: []string{"sha256sum", "deep/er/data.bin"}})
	if err != nil || !strings.HasPrefix(r.Stdout, hex.EncodeToString(sum[:])) {
		t.Errorf("%+v, %v", r, err)
	}
	f, err := sb.ReadFile(ctx, "deep/er/data.bin")
	if err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil || !bytes.Equal(back, data) {
		t.Errorf("%d bytes came back, %v", len(back), err)
	}
	var out bytes.Buffer
	r, err = sb.Copy(ctx, &out, client.Command{Argv: []string{"sh", "-c", "cat deep/er/data.bin; echo oops >&2; exit 3"}})
	if err != nil || r.ExitCode != 3 || r.Stderr != "oops\n" || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%+v, %v, %d bytes", r, err, out.Len())
	}
	if _, err := sb.ReadFile(ctx, "nothing"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("a file that is not there: %v", err)
	}
}

// testStop shows that a daemon told to stop leaves nothing, with a call under way.
func testStop(ctx context.Context, t *testing.T, d *daemon) {
	sb, err := d.Create(ctx, client.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		r   arenero.Result
		err error
	}
	under := make(chan answer, 1)
	go func() {
		r, err := sb.Kernel("python").Execute(ctx, client.Cell{Code: "import time; time.sleep(2); print('done')"})
		under <- answer{r, err}
	}()
	time.Sleep(500 * time.Millisecond) // let it be under way; if it is not, it is told so below
	d.stop(t, syscall.SIGTERM)
	if a := <-under; a.err == nil && a.r.Output != "done\n" && a.r.ExitReason != arenero.Cancelled {
		t.Errorf("a call under way ended with %+v", a.r)
	}
	for _, sub := range []string{"boxes", "runs"} {
		if left, err := os.ReadDir(filepath.Join(d.data, sub)); err == nil && len(left) > 0 {
			t.Errorf("%s holds %v after the end", sub, left)
		}
	}
	if ps := processesOf(t, d.data); len(ps) > 0 {
		t.Errorf("still running: %v", ps)
	}
}

// processesOf finds processes that have a path on their command line.
func processesOf(t *testing.T, path string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err == nil && bytes.Contains(b, []byte(path)) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}
