package dial

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// A liar is a guest that has been taken over: it speaks the protocol, and lies.
type liar struct {
	wire.UnimplementedGuestHandler
}

func (liar) Hello(context.Context, *wire.HelloRequest) (*wire.HelloResponse, error) {
	r := &wire.HelloResponse{Version: strings.Repeat("v", 1<<20) + "\x1b[2J", UptimeMs: math.MaxInt64}
	for range 50_000 {
		r.Specs = append(r.Specs, &wire.KernelSpec{Name: "\x1b]0;title\a"})
	}
	return r, nil
}

func (liar) Wake(ctx context.Context, _ *wire.WakeRequest) (*wire.WakeResponse, error) {
	<-ctx.Done() // never answers
	return nil, ctx.Err()
}

func (liar) Stat(context.Context, *wire.StatRequest) (*wire.StatResponse, error) {
	return &wire.StatResponse{Info: &wire.FileInfo{Path: []byte("../../\xff\xfe"), Size: math.MinInt64, Mode: math.MaxUint32, ModifiedUnixNanos: math.MinInt64}}, nil
}

func (liar) ReadDir(_ context.Context, _ *wire.ReadDirRequest, s *connect.ServerStream[wire.ReadDirResponse]) error {
	batch := &wire.ReadDirResponse{}
	for range 1000 {
		batch.Entries = append(batch.Entries, &wire.FileInfo{Path: []byte("x")})
	}
	for { // without end
		if err := s.Send(batch); err != nil {
			return err
		}
	}
}

func (liar) Process(_ context.Context, s *connect.BidiStream[wire.ProcessInput, wire.ProcessOutput]) error {
	in, err := s.Receive()
	if err != nil {
		return err
	}
	if in.GetAttach() != nil {
		return attach(in.GetAttach().GetPid(), s)
	}
	switch in.GetStart().GetTag() {
	case "no start":
		return s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Stdout{Stdout: []byte("x")}})
	case "bad pid":
		return s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Started{Started: &wire.ProcessStarted{Pid: -5}}})
	}
	if err := s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Started{Started: &wire.ProcessStarted{Pid: 7}}}); err != nil {
		return err
	}
	if in.GetStart().GetTag() == "no exit" {
		return nil
	}
	return s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Exit{Exit: &wire.ProcessExit{
		Code: math.MaxInt32, Signal: "\x1b[31m" + strings.Repeat("S", 1000), Reason: "because", DurationUs: math.MinInt64,
	}}})
}

func (liar) Execute(_ context.Context, s *connect.BidiStream[wire.ExecuteInput, wire.ExecuteOutput]) error {
	if _, err := s.Receive(); err != nil {
		return err
	}
	mime := map[string]string{}
	for i := range 1000 {
		mime[strings.Repeat("m", i)] = "x"
	}
	for _, o := range []*wire.ExecuteOutput{
		{Output: &wire.ExecuteOutput_Stdout{Stdout: []byte("h\xc3")}},
		{Output: &wire.ExecuteOutput_Stdout{Stdout: []byte("\xa9!\xff")}},
		{Output: &wire.ExecuteOutput_Display{Display: &wire.Display{Mime: mime, ChartJson: []byte(`{"type":"line","series":[{"points":` + strings.Repeat("[", 5000))}}},
		{Output: &wire.ExecuteOutput_End{End: &wire.KernelEnd{Reason: "x", ExitCode: math.MinInt32, ExecutionCount: math.MinInt32, DurationUs: math.MaxInt64}}},
	} {
		if err := s.Send(o); err != nil {
			return err
		}
	}
	return nil
}

func (liar) ListKernels(context.Context, *wire.ListKernelsRequest) (*wire.ListKernelsResponse, error) {
	err := connect.NewError(connect.CodeInternal, errors.New(strings.Repeat("e", 1<<16)+"\r\n\x1b[2J"))
	return nil, err
}

// talk opens a guest whose other end is served by h.
func talk(t *testing.T, serve func(net.Conn)) arenero.Guest {
	t.Helper()
	old := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, old) })
	near, far := net.Pipe()
	l := wire.Listen(far, far)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
		}
	}()
	g, err := Open(t.Context(), near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		l.Close()
		<-done
	})
	return g
}

func lying(c net.Conn) {
	_, h := wire.NewGuestHandler(liar{})
	//nolint:staticcheck // as the agent does
	(&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: h, BaseConfig: &http.Server{}})
}

func plain(t *testing.T, what, s string, most int) {
	t.Helper()
	if len(s) > most || !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\r\n\a") {
		t.Errorf("%s: %d bytes: %.80q", what, len(s), s)
	}
}

func TestLies(t *testing.T) {
	g := talk(t, lying)
	ctx := t.Context()

	hello, err := g.Hello(ctx)
	if err != nil || len(hello.Specs) > 1000 || hello.Uptime < 0 {
		t.Errorf("hello: %d specs, %v, %v", len(hello.Specs), hello.Uptime, err)
	}
	plain(t, "version", hello.Version, 8<<10)
	for _, s := range hello.Specs {
		plain(t, "spec", s.Name, 8<<10)
	}

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := g.Wake(short, arenero.Wake{}); arenero.CodeOf(err) != arenero.Timeout {
		t.Errorf("a wake without an answer: %v", err)
	}
	if info, err := g.Stat(ctx, "", "x"); err != nil || info.Size < 0 || strings.ContainsRune(info.Name, '/') {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if _, err := g.ReadDir(ctx, "", "/", 1); arenero.CodeOf(err) != arenero.TooLarge {
		t.Errorf("a folder without end: %v", err)
	}
	_, err = g.ListKernels(ctx)
	if err == nil {
		t.Error("no error")
	} else {
		plain(t, "error", err.Error(), 8<<10)
	}
	for _, tag := range []string{"no start", "bad pid"} {
		if _, err := g.Start(ctx, arenero.Command{Argv: []string{"x"}, Tag: tag}); arenero.CodeOf(err) != arenero.Internal {
			t.Errorf("%s: %v", tag, err)
		}
	}
	p, err := g.Start(ctx, arenero.Command{Argv: []string{"x"}, Tag: "no exit"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Next(); arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("a process without an exit: %v", err)
	}
	p.Close()
	p, err = g.Start(ctx, arenero.Command{Argv: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	ev, err := p.Next()
	if err != nil || ev.Exit == nil || ev.Exit.Code > 255 || ev.Exit.Code < -1 || ev.Exit.Duration < 0 || ev.Exit.Reason == "because" {
		t.Errorf("exit: %+v, %v", ev.Exit, err)
	} else {
		plain(t, "signal", ev.Exit.Signal, 64)
	}
	p.Close()
}

func TestLiesOfKernels(t *testing.T) {
	g := talk(t, lying)
	x, err := g.Execute(t.Context(), arenero.Execute{Kernel: "k", Code: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var out strings.Builder
	for {
		ev, err := x.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(ev.Stdout)
		if ev.Display != nil && (len(ev.Display.MIME) > 64 || ev.Display.Chart != nil) {
			t.Errorf("display: %d types, chart %v", len(ev.Display.MIME), ev.Display.Chart)
		}
		if ev.End != nil && (ev.End.Duration < 0 || ev.End.ExecutionCount < 0 || ev.End.ExitCode < -1 || ev.End.ExitCode > 255 || ev.End.Reason == "x") {
			t.Errorf("end: %+v", ev.End)
		}
	}
	// A character that was cut in two is whole again.
	if !strings.HasPrefix(out.String(), "h\u00e9!") {
		t.Errorf("output %q", out.String())
	}
}

// A guest that sends anything but HTTP/2 is found out at once.
func TestGarbage(t *testing.T) {
	g := talk(t, func(c net.Conn) {
		defer c.Close()
		for range 1000 {
			if _, err := c.Write([]byte(strings.Repeat("garbage\x00\xff", 100))); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	start := time.Now()
	if _, err := g.Hello(ctx); err == nil || time.Since(start) > 8*time.Second {
		t.Errorf("hello of garbage: %v after %v", err, time.Since(start))
	}
}

// A guest that never answers the link costs no more than the caller's patience.
func TestSilence(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go func() { _, _ = io.Copy(io.Discard, far) }() // ends with far
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, near); arenero.CodeOf(err) != arenero.Unavailable && arenero.CodeOf(err) != arenero.Timeout {
		t.Errorf("open of silence: %v", err)
	}
}

func FuzzChart(f *testing.F) {
	f.Add([]byte(`{"type":"line","series":[{"points":[[1,2]]}]}`))
	f.Add([]byte(`{"type":"superchart","charts":[{"type":"pie"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c := parseChart(raw); c != nil && (!utf8.ValidString(c.Title) || c.Type == "") {
			t.Errorf("%+v", c)
		}
	})
}
