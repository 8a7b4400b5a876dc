package agent_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent"
	"github.com/arenero/arenero/guest/dial"
	"github.com/arenero/arenero/guest/wire"
)

func TestMain(m *testing.M) {
	if stage := os.Getenv(boxStage); stage != "" {
		enterBox(stage)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built != "" {
			_ = os.RemoveAll(built) // the code says what went wrong
		}
		os.Exit(code)
	}))
}

// built is the folder of the agent's binary, once a test has needed it.
var built string

// native is an agent in this process, on a wire of two pipes, with a guest at the
// host's end. User code runs as a user of its own when the test is root.
func native(t testing.TB, change ...func(*agent.Config)) arenero.Guest {
	t.Helper()
	dir := shortDir(t)
	cfg := agent.Config{
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Workdir: dir, RunDir: dir + "/run",
		Limits: arenero.DefaultLimits(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	cfg.Limits.Processes = 4096
	if os.Geteuid() == 0 {
		cfg.User = &arenero.User{Name: "tester", UID: 54321, GID: 54321, Home: dir}
		if err := os.Chown(dir, 54321, 54321); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range change {
		f(&cfg)
	}
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	in, out := socketPair(t)
	l := wire.Listen(in, in)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	g := openGuest(t, out)
	t.Cleanup(func() {
		_ = g.Close()
		cancel()
		// A socket that is closed with bytes unread resets: an end as good as any.
		if err := <-served; err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "arn") // t.TempDir is too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openGuest(t testing.TB, c net.Conn) arenero.Guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	g, err := dial.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Hello(ctx); err != nil {
		t.Fatal(err)
	}
	return g
}

func socketPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", shortDir(t)+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// ran is how a command went.
type ran struct {
	out, err string
	exit     arenero.ProcessExit
	dropped  int64
}

func sh(script string) arenero.Command {
	return arenero.Command{Argv: []string{"/bin/sh", "-c", script}}
}

func run(t testing.TB, g arenero.Guest, c arenero.Command) ran {
	t.Helper()
	p, err := g.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return follow(t, p)
}

func follow(t testing.TB, p arenero.Process) (r ran) {
	t.Helper()
	var out, errs strings.Builder
	for {
		e, err := p.Next()
		if errors.Is(err, io.EOF) {
			r.out, r.err = out.String(), errs.String()
			return r
		}
		if err != nil {
			t.Fatalf("%v, after %q and %q", err, out.String(), errs.String())
		}
		out.Write(e.Stdout)
		errs.Write(e.Stderr)
		r.dropped += e.Dropped
		if e.Exit != nil {
			r.exit = *e.Exit
		}
	}
}

func wantCode(t testing.TB, err error, code arenero.Code) {
	t.Helper()
	if arenero.CodeOf(err) != code {
		t.Fatalf("got %q (%v), want %q", arenero.CodeOf(err), err, code)
	}
}

// eventually waits for what must come about, generously.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not within 20 s: %s", what)
}
