package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// serve runs the door on a port of its own; stop is what a signal does.
func (h *house) serve(t *testing.T) (url string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, l) }()
	done := false
	stop = func() error {
		if done {
			return nil
		}
		done = true
		cancel()
		return <-served
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), stop
}

func (h *house) do(ctx context.Context, method, url, accept, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+h.key)
	r.Header.Set("Content-Type", "application/json")
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	return http.DefaultClient.Do(r)
}

func (h *house) sandbox(t *testing.T) string {
	t.Helper()
	sb, err := h.host.Create(context.Background(), host.Local(), arenero.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

func TestTimeoutAnswersInTime(t *testing.T) {
	h := build(t)
	url, _ := h.serve(t)
	for _, code := range []string{
		"import time\nprint('partial', flush=True)\nt = time.monotonic()\nwhile time.monotonic() < t + 60: pass",
		// Code that will not be interrupted.
		"import time, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('partial', flush=True)\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass",
	} {
		b, err := json.Marshal(map[string]any{"code": code, "timeout": 1})
		if err != nil {
			t.Fatal(err)
		}
		res, err := h.do(context.Background(), "POST", url+"/execute", "", string(b))
		if err != nil {
			t.Fatal(err)
		}
		var r arenero.Result
		err = json.NewDecoder(res.Body).Decode(&r)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || r.ExitReason != arenero.TimedOut || r.Output != "partial\n" || r.ExitCode == 0 {
			t.Errorf("%d %+v %v", res.StatusCode, r, err)
		}
		if over := time.Duration(r.Duration) - time.Second; over > time.Second {
			t.Errorf("it took %v past its deadline", over)
		}
	}
}

// A client that goes away takes its run with it: the cell is interrupted, the
// command killed, the one-shot sandbox ended.
func TestClientThatGoesAway(t *testing.T) {
	h := build(t)
	url, _ := h.serve(t)
	id := h.sandbox(t)
	for name, c := range map[string]struct{ path, accept, body string }{
		"cell":        {"/v1/sandboxes/" + id + "/kernels/python/execute", "", `{"code": "import time\ntime.sleep(1000)"}`},
		"cell events": {"/v1/sandboxes/" + id + "/kernels/python/execute", "text/event-stream", `{"code": "import time\ntime.sleep(1000)"}`},
		"exec":        {"/v1/sandboxes/" + id + "/exec", "", `{"argv": ["sleep", "1000"]}`},
		"exec raw":    {"/v1/sandboxes/" + id + "/exec", "application/octet-stream", `{"argv": ["sleep", "1000"]}`},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		res, err := h.do(ctx, "POST", url+c.path, c.accept, c.body)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g, err := h.host.Guest(context.Background(), host.Local(), id, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process", func() bool {
		all, err := g.ListProcesses(context.Background())
		return err == nil && len(all) == 0
	})
	res, err := h.do(context.Background(), "POST", url+"/v1/sandboxes/"+id+"/kernels/python/execute", "", `{"code": "1", "timeout": 20}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var r arenero.Result
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil || r.ExitReason != arenero.Exited {
		t.Errorf("the kernel is not free: %+v %v", r, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := h.do(ctx, "POST", url+"/execute", "", `{"code": "import time\ntime.sleep(1000)"}`); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	eventually(t, "one sandbox", func() bool {
		all, err := h.host.List(context.Background(), host.Local(), host.Filter{})
		return err == nil && len(all) == 1
	})
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came: " + what)
		}
	}
}

// At shutdown a call in flight finishes within the grace, and one that does not
// is told.
func TestShutdown(t *testing.T) {
	for name, c := range map[string]struct {
		grace  time.Duration
		sleep  string
		status int
	}{
		"finishes": {30 * time.Second, "1", 200},
		"is told":  {300 * time.Millisecond, "1000", 503},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t)
			h.Grace = c.grace
			url, stop := h.serve(t)
			id := h.sandbox(t)
			type answer struct {
				status int
				body   string
				err    error
			}
			got := make(chan answer, 1)
			go func() {
				res, err := h.do(context.Background(), "POST", url+"/v1/sandboxes/"+id+"/exec", "", `{"argv": ["/bin/sh", "-c", "touch begun; sleep `+c.sleep+`"]}`)
				a := answer{err: err}
				if err == nil {
					b, rerr := io.ReadAll(res.Body)
					res.Body.Close()
					a = answer{res.StatusCode, string(b), rerr}
				}
				got <- a
			}()
			g, err := h.host.Guest(context.Background(), host.Local(), id, host.ScopeRun)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the run", func() bool {
				_, err := g.Stat(context.Background(), "", "begun")
				return err == nil
			})
			if err := stop(); err != nil {
				t.Error(err)
			}
			if a := <-got; a.err != nil || a.status != c.status {
				t.Errorf("%+v", a)
			}
			if _, err := http.Get(url + "/healthz"); err == nil {
				t.Error("it still answers")
			}
		})
	}
}

// A client that sends its head or its body drop by drop is cut off, or at least
// keeps nobody else waiting.
func TestSlowClientHoldsNobodyUp(t *testing.T) {
	h := build(t)
	url, _ := h.serve(t)
	addr := strings.TrimPrefix(url, "http://")
	for range 50 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /execute HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 100000\r\n\r\n{", addr, h.key); err != nil {
			t.Fatal(err)
		}
	}
	res, err := http.Get(url + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.StatusCode)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nX: "+strings.Repeat("y", 200<<10)); err != nil {
		return // cut off already
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && !strings.Contains(line, "431") {
		t.Errorf("a head of 200 KB: %q", line)
	}
}

// Output streams from a process to the client with flat memory.
func TestStreamIsFlat(t *testing.T) {
	h := build(t)
	url, _ := h.serve(t)
	id := h.sandbox(t)
	const size = 256 << 20
	start := time.Now()
	res, err := h.do(context.Background(), "POST", url+"/v1/sandboxes/"+id+"/exec", "application/octet-stream",
		fmt.Sprintf(`{"argv": ["head", "-c", "%d", "/dev/zero"], "timeout": 300}`, size))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var most uint64
	var n int64
	buf := make([]byte, 1<<20)
	for {
		k, err := res.Body.Read(buf)
		if bytes.ContainsFunc(buf[:k], func(r rune) bool { return r != 0 }) {
			t.Fatal("not what was written")
		}
		if n += int64(k); n/(16<<20) != (n-int64(k))/(16<<20) {
			var m runtime.MemStats
			runtime.GC() // what is held, not what has not been swept yet
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != size || res.Trailer.Get("Arenero-Exit-Code") != "0" || res.Trailer.Get("Arenero-Exit-Reason") != "exited" {
		t.Errorf("%d bytes, trailer %v", n, res.Trailer)
	}
	t.Logf("%.0f MB/s, heap at most %d MiB", float64(n)/1e6/time.Since(start).Seconds(), most>>20)
	if most > 32<<20 {
		t.Errorf("the heap grew to %d MiB", most>>20)
	}
}

func TestFilesStreamThrough(t *testing.T) {
	h := build(t)
	url, _ := h.serve(t)
	id := h.sandbox(t)
	const size = 64 << 20
	body := io.LimitReader(neverEnding('x'), size)
	r, err := http.NewRequest(http.MethodPut, url+"/v1/sandboxes/"+id+"/files?path=big", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", h.key)
	start := time.Now()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var info arenero.FileInfo
	if err := json.NewDecoder(res.Body).Decode(&info); err != nil || info.Size != size {
		t.Fatalf("%d %+v %v", res.StatusCode, info, err)
	}
	up := time.Since(start)
	start = time.Now()
	res, err = h.do(context.Background(), "GET", url+"/v1/sandboxes/"+id+"/files?path=big", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
		t.Errorf("%d %v", n, err)
	}
	t.Logf("up %.0f MB/s, down %.0f MB/s", size/1e6/up.Seconds(), size/1e6/time.Since(start).Seconds())

	// An upload that is cut in the middle leaves nothing.
	ctx, cancel := context.WithCancel(context.Background())
	cut, w := io.Pipe()
	go func() {
		_, _ = io.CopyN(w, neverEnding('y'), 1<<20)
		cancel()
		w.CloseWithError(errors.New("cut")) // the client waits for its body, cancelled or not
	}()
	r, err = http.NewRequestWithContext(ctx, http.MethodPut, url+"/v1/sandboxes/"+id+"/files?path=cut", cut)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", h.key)
	if res, err := http.DefaultClient.Do(r); err == nil {
		res.Body.Close()
		t.Error("answered an upload that was cut")
	}
	g, err := h.host.Guest(context.Background(), host.Local(), id, host.ScopeRun)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "no leftovers", func() bool {
		all, err := g.ReadDir(context.Background(), "", ".", 1)
		return err == nil && len(all) == 1
	})
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}
