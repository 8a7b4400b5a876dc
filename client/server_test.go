package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
	"github.com/arenero/arenero/door/rest"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/store"
)

// server is a real one: the door over the real host and store. Its engine runs
// the real agent without a box around it, which can not sleep or be copied; what
// needs that is tested in e2e.
func server(t *testing.T, around func(http.Handler) http.Handler) *client.Client {
	t.Helper()
	db, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(host.Config{
		Engines: map[string]arenero.Engine{"local": enginetest.Local(t)}, DefaultEngine: "local", Images: enginetest.LocalImages(t), Store: db,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	var handler http.Handler = rest.New(rest.Config{Host: h})
	if around != nil {
		handler = around(handler)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		stop()
		if err := errors.Join(<-ran, h.Close(context.Background()), db.Close()); err != nil {
			t.Error(err)
		}
	})
	key, _, err := h.LocalKey(context.Background(), t.TempDir()+"/key")
	if err != nil {
		t.Fatal(err)
	}
	return client.New(s.URL, key)
}

func create(t *testing.T, c *client.Client, s client.Spec) *client.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestSandboxes(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	one := create(t, c, client.Spec{Labels: map[string]string{"n": "1", "for": "test"}, Lifetime: time.Hour, Idle: -1, OnTimeout: arenero.PauseOnTimeout})
	two := create(t, c, client.Spec{Labels: map[string]string{"n": "2", "for": "test"}})
	if one.Info.Idle != 0 || one.Info.OnTimeout != arenero.PauseOnTimeout || time.Duration(one.Info.Lifetime) != time.Hour {
		t.Errorf("made %+v", one.Info)
	}
	find := func(f client.Filter) (ids []string) {
		for sb, err := range c.Find(ctx, f) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, sb.ID())
		}
		return ids
	}
	if got := find(client.Filter{Labels: map[string]string{"n": "2", "for": "test"}}); len(got) != 1 || got[0] != two.ID() {
		t.Errorf("by two labels: %v", got)
	}
	if err := two.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if got := find(client.Filter{}); len(got) != 1 || got[0] != one.ID() {
		t.Errorf("living: %v", got)
	}
	if got := find(client.Filter{All: true}); len(got) != 2 {
		t.Errorf("all: %v", got)
	}
	if got := find(client.Filter{States: []arenero.State{arenero.Killed, arenero.Paused}}); len(got) != 1 || got[0] != two.ID() {
		t.Errorf("by states: %v", got)
	}
	life, never := 2*time.Hour, -time.Second
	kill := arenero.KillOnTimeout
	if err := one.Update(ctx, arenero.Patch{Lifetime: &life, Idle: &never, OnTimeout: &kill, Labels: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	if i := one.Info; time.Duration(i.Lifetime) != life || i.OnTimeout != kill || len(i.Labels) != 0 || i.Idle != 0 {
		t.Errorf("updated %+v", i)
	}
	if u, err := one.Usage(ctx); err != nil || u.Limits.Memory != arenero.DefaultLimits().Memory {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := one.Pause(ctx); arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("an engine that can not pause: %v", err)
	}
	if _, err := c.Get(ctx, "sbx-nothing"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("no such sandbox: %v", err)
	}
}

// TestOneSandboxOnly breaks the connection after the server has made the sandbox
// and before the client has heard of it.
func TestOneSandboxOnly(t *testing.T) {
	var posts atomic.Int32
	c := server(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || posts.Add(1) != 1 {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
	})
	sb := create(t, c, client.Spec{})
	var ids []string
	for other, err := range c.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, other.ID())
	}
	if posts.Load() != 2 || len(ids) != 1 || ids[0] != sb.ID() {
		t.Errorf("%d requests made %v, the client knows %s", posts.Load(), ids, sb.ID())
	}
}

func TestIdempotencyKey(t *testing.T) {
	c := server(t, nil)
	sb := create(t, c, client.Spec{IdempotencyKey: "a"})
	if same := create(t, c, client.Spec{IdempotencyKey: "a"}); same.ID() != sb.ID() {
		t.Errorf("%s and %s under one key", sb.ID(), same.ID())
	}
	for range 2 {
		r, err := sb.Exec(t.Context(), client.Command{Script: "echo x >>file; wc -l <file", IdempotencyKey: "b"})
		if err != nil || strings.TrimSpace(r.Stdout) != "1" {
			t.Errorf("%q, %v", r.Stdout, err)
		}
	}
}

func TestWait(t *testing.T) {
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, `{"code":"exhausted","detail":"full","hint":"wait"}`)
	}))
	defer busy.Close()
	_, err := client.New(busy.URL, "").Create(t.Context(), client.Spec{})
	if arenero.CodeOf(err) != arenero.Exhausted || arenero.WaitOf(err) != 7*time.Second || arenero.HintOf(err) != "wait" {
		t.Errorf("%v, wait %v", err, arenero.WaitOf(err))
	}
}

func TestProcesses(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	sb := create(t, c, client.Spec{})
	pid, err := sb.Start(ctx, client.Command{Script: "echo begun; sleep 1000", Tag: "sleeper"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := sb.Processes(ctx)
	if err != nil || len(all) != 1 || all[0].PID != pid || all[0].Tag != "sleeper" {
		t.Errorf("%+v, %v", all, err)
	}
	var out string
	for e, err := range sb.Attach(ctx, pid) {
		if err != nil {
			t.Fatal(err)
		}
		if out += string(e.Stdout); out == "begun\n" && e.Exit == nil {
			if err := sb.Signal(ctx, pid, "SIGTERM", true); err != nil {
				t.Fatal(err)
			}
		}
		if e.Exit != nil && (e.Exit.Signal != "SIGTERM" || e.Exit.Code != 143) {
			t.Errorf("ended by %+v", e.Exit)
		}
	}
	if out != "begun\n" {
		t.Errorf("it wrote %q", out)
	}
}

func TestSession(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	sb := create(t, c, client.Spec{})
	drain := func(p *client.Session) (stdout, stderr string, exit *arenero.ProcessExit) {
		t.Helper()
		for {
			e, err := p.Next()
			if errors.Is(err, io.EOF) {
				return stdout, stderr, exit
			}
			if err != nil {
				t.Fatal(err)
			}
			stdout, stderr, exit = stdout+string(e.Stdout), stderr+string(e.Stderr), e.Exit
		}
	}
	t.Run("pipes", func(t *testing.T) {
		p, err := sb.Open(ctx, client.Shell{Argv: []string{"/bin/sh", "-c", "wc -c; echo oops >&2; exit 3"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		go func() {
			_, _ = p.Write(make([]byte, 3<<20)) // more than one frame; a failure shows below
			_ = p.CloseStdin()
		}()
		out, errs, exit := drain(p)
		if strings.TrimSpace(out) != "3145728" || errs != "oops\n" || exit == nil || exit.Code != 3 || p.PID() < 1 {
			t.Errorf("%q %q %+v", out, errs, exit)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		p, err := sb.Open(ctx, client.Shell{Argv: []string{"/bin/sh", "-c", "stty size; read x; stty size; echo got $x"}, PTY: &client.Window{Cols: 91, Rows: 17}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if e, err := p.Next(); err != nil || !strings.Contains(string(e.Stdout), "17 91") {
			t.Fatalf("%q, %v", e.Stdout, err)
		}
		if err := p.Resize(client.Window{Cols: 40, Rows: 10}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(p, "word\n"); err != nil {
			t.Fatal(err)
		}
		if out, _, exit := drain(p); !strings.Contains(out, "10 40") || !strings.Contains(out, "got word") || exit.Code != 0 {
			t.Errorf("%q %+v", out, exit)
		}
	})
	t.Run("signal", func(t *testing.T) {
		p, err := sb.Open(ctx, client.Shell{Argv: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Signal("SIGINT"); err != nil {
			t.Fatal(err)
		}
		if _, _, exit := drain(p); exit == nil || exit.Signal != "SIGINT" {
			t.Errorf("%+v", exit)
		}
	})
	t.Run("attach", func(t *testing.T) {
		pid, err := sb.Start(ctx, client.Command{Script: "echo early; sleep 0.3; echo late"})
		if err != nil {
			t.Fatal(err)
		}
		p, err := sb.Join(ctx, pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if out, _, _ := drain(p); out != "early\nlate\n" || p.PID() != pid {
			t.Errorf("%q, pid %d", out, p.PID())
		}
	})
	t.Run("closed", func(t *testing.T) {
		p, err := sb.Open(ctx, client.Shell{Argv: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		eventually(t, "the command's end", func() bool {
			all, err := sb.Processes(ctx)
			return err == nil && len(all) == 0
		})
	})
	if _, err := sb.Open(ctx, client.Shell{Argv: []string{"no-such-command"}}); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("no such command: %v", err)
	}
	if _, err := c.At("sbx-nothing").Open(ctx, client.Shell{Argv: []string{"true"}}); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("no such sandbox: %v", err)
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came: " + what)
		}
	}
}

func TestFiles(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	sb := create(t, c, client.Spec{})
	data := bytes.Repeat([]byte("0123456789"), 500_000)
	var told, last int64
	info, err := sb.Upload(ctx, "a/b.bin", 0o640, bytes.NewReader(data), func(done, total int64) { told, last = total, done })
	if err != nil || info.Size != int64(len(data)) || told != info.Size || last != info.Size {
		t.Fatalf("%+v, %v, told of %d of %d", info, err, last, told)
	}
	f, err := sb.OpenFile(ctx, "a/b.bin", nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil || !bytes.Equal(back, data) || f.Size != int64(len(data)) {
		t.Errorf("%d bytes of %d came back, %v", len(back), f.Size, err)
	}
	if b, err := sb.ReadRange(ctx, "a/b.bin", 12, 5); err != nil || string(b) != "23456" {
		t.Errorf("a range: %q, %v", b, err)
	}
	cut := io.MultiReader(strings.NewReader("begun"), failing{})
	if err := sb.WriteFile(ctx, "cut", 0o644, cut); arenero.CodeOf(err) != arenero.Invalid || !strings.Contains(err.Error(), "the disk fell off") {
		t.Errorf("a reader that fails: %v", err)
	}
	if _, err := sb.Stat(ctx, "cut"); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("half a file: %v", err)
	}
	for _, err := range []error{
		sb.MakeDir(ctx, "made/deep"), sb.Move(ctx, "a/b.bin", "made/c.bin"), sb.Chmod(ctx, "made/c.bin", 0o600),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if i, err := sb.Stat(ctx, "made/c.bin"); err != nil || i.Mode.Perm() != 0o600 {
		t.Errorf("%+v, %v", i, err)
	}
	watching, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	go func() { // ends with the watching; a failure shows as a change that is not told
		for n := 0; watching.Err() == nil; n++ {
			_ = sb.WriteFile(watching, fmt.Sprintf("made/new-%d", n), 0o644, strings.NewReader("x"))
			time.Sleep(100 * time.Millisecond)
		}
	}()
	seen := false
	for e, err := range sb.Watch(watching, "made", false) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = strings.Contains(e.Path, "/new-"); seen {
			break
		}
	}
	if !seen {
		t.Error("a change was not told")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk fell off") }

// TestTampered shows that a file that was changed on its way is noticed.
func TestTampered(t *testing.T) {
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.Header().Set("Content-Digest", "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:")
			io.WriteString(w, `{"path":"/x","size":4}`)
			return
		}
		w.Header().Set("Trailer", "Content-Digest")
		io.WriteString(w, "data")
		w.Header().Set("Content-Digest", "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:")
	}))
	defer liar.Close()
	sb := client.New(liar.URL, "").At("sbx-x")
	f, err := sb.ReadFile(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadAll(f); err == nil || !strings.Contains(err.Error(), "digests") {
		t.Errorf("read: %v", err)
	}
	if err := sb.WriteFile(t.Context(), "x", 0o644, strings.NewReader("data")); err == nil || !strings.Contains(err.Error(), "digests") {
		t.Errorf("write: %v", err)
	}
}

// TestEvents follows a sandbox while the connection breaks at every other request.
func TestEvents(t *testing.T) {
	var asked atomic.Int32
	c := server(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/events") && asked.Add(1)%2 == 1 {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	ctx := t.Context()
	sb := create(t, c, client.Spec{})
	var states []string
	var seq int64
	for e, err := range c.Events(ctx, sb.ID(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq <= seq {
			t.Errorf("%d was told after %d", e.Seq, seq)
		}
		seq = e.Seq
		if e.State == arenero.Running {
			if err := sb.Kill(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if states = append(states, string(e.State)); e.State.Ended() {
			break
		}
	}
	if got := strings.Join(states, " "); got != "creating running killing killed" {
		t.Errorf("followed %q", got)
	}
}

func TestPort(t *testing.T) {
	c := server(t, nil)
	sb := create(t, c, client.Spec{})
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %s %s %q %q", r.Method, r.URL.RequestURI(), body, r.Header.Get("Authorization"), r.Header.Get("Cookie"))
	}))
	defer inside.Close()
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	web := http.Client{Transport: sb.Port(port)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://anything/a/b%20c?q=1", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "http://elsewhere.example")
	req.Header.Set("Cookie", "session=secret")
	resp, err := web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || string(b) != `POST /a/b%20c?q=1 hello "" ""` {
		t.Errorf("%s: %s, %v", resp.Status, b, err)
	}
	inside.Close()
	resp, err = web.Get("http://anything/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("nobody listens: %s", resp.Status)
	}
}

func TestKeys(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	secret, err := c.MakeKey(ctx, client.Key{Name: "reader", Scopes: []string{"read"}, Ceilings: client.Ceilings{Sandboxes: 2}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	reader := client.New(c.URL, secret)
	if _, err := reader.Images(ctx); err != nil {
		t.Error(err)
	}
	if _, err := reader.Create(ctx, client.Spec{}); arenero.CodeOf(err) != arenero.Denied {
		t.Errorf("a reader's create: %v", err)
	}
	keys, err := c.Keys(ctx)
	if err != nil || len(keys) != 2 {
		t.Fatal(keys, err)
	}
	id := strings.Split(secret, "_")[1]
	for _, k := range keys {
		if k.ID == id && (k.Name != "reader" || k.Ceilings.Sandboxes != 2 || k.Expires == nil || k.Used == nil) {
			t.Errorf("%+v", k)
		}
	}
	if err := c.RevokeKey(ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Images(ctx); arenero.CodeOf(err) != arenero.Unauthenticated {
		t.Errorf("revoked: %v", err)
	}
}

func TestBackup(t *testing.T) {
	c := server(t, nil)
	var b bytes.Buffer
	if err := c.Backup(t.Context(), &b); err != nil || !bytes.HasPrefix(b.Bytes(), []byte("SQLite format 3\x00")) {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

func TestPools(t *testing.T) {
	c := server(t, nil)
	if all, err := c.Pools(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := c.SetPool(t.Context(), arenero.Pool{Image: "no-such", Min: 1, Max: 1}); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("%v", err)
	}
}

func TestKernels(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	k := create(t, c, client.Spec{}).Kernel("python")
	if r, err := k.Execute(ctx, client.Cell{Code: "number = 41"}); err != nil || r.ExitReason != arenero.Exited {
		t.Fatalf("%+v, %v", r, err)
	}
	if got, err := k.Complete(ctx, "numb", 4); err != nil || len(got.Matches) == 0 || got.Matches[0] != "number" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := k.Inspect(ctx, "number", 3); err != nil || !strings.Contains(got["text/plain"], "41") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTrees(t *testing.T) {
	c := server(t, nil)
	ctx := t.Context()
	sb := create(t, c, client.Spec{})
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for name, text := range map[string]string{"one": "1", "sub/two": "22"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := sb.WriteTree(ctx, "tree", &in)
	if err != nil || info.Files != 2 || info.Bytes != 3 {
		t.Fatalf("%+v, %v", info, err)
	}
	out, err := sb.ReadTree(ctx, "tree")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	got := map[string]string{}
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			got[strings.TrimPrefix(h.Name, "./")] = string(b)
		}
	}
	if len(got) != 2 || got["one"] != "1" || got["sub/two"] != "22" {
		t.Errorf("%v", got)
	}
}
