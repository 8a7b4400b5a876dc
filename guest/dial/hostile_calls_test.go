package dial

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// attach does what the pid says.
func attach(pid int64, s *connect.BidiStream[wire.ProcessInput, wire.ProcessOutput]) error {
	started := func(pid int64) error {
		return s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Started{Started: &wire.ProcessStarted{Pid: pid}}})
	}
	switch pid {
	case 1: // says nothing
		_, err := s.Receive()
		return err
	case 2: // is another
		return started(3)
	case 3:
		return connect.NewError(connect.CodeNotFound, errLoud)
	}
	if err := started(pid); err != nil {
		return err
	}
	for range 3 {
		if err := s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Dropped{Dropped: math.MaxInt64}}); err != nil {
			return err
		}
	}
	for piece := make([]byte, 64<<10); ; { // without end
		if err := s.Send(&wire.ProcessOutput{Output: &wire.ProcessOutput_Stdout{Stdout: piece}}); err != nil {
			return err
		}
		if err := s.Send(&wire.ProcessOutput{}); err != nil { // nothing at all
			return err
		}
	}
}

// Dial does what the port says.
func (liar) Dial(ctx context.Context, s *connect.BidiStream[wire.DialInput, wire.DialOutput]) error {
	in, err := s.Receive()
	if err != nil {
		return err
	}
	switch in.GetPort() {
	case 1:
		<-ctx.Done()
		return ctx.Err()
	case 2:
		return nil
	case 3:
		return connect.NewError(connect.CodeUnavailable, errLoud)
	}
	if err := s.Send(&wire.DialOutput{}); err != nil {
		return err
	}
	switch in.GetPort() {
	case 4: // open, and neither reads nor writes
		<-ctx.Done()
		return ctx.Err()
	case 5: // a thousand times nothing
		for range 1000 {
			if err := s.Send(&wire.DialOutput{}); err != nil {
				return err
			}
		}
		return s.Send(&wire.DialOutput{Data: []byte("\xff\n")})
	}
	for piece := make([]byte, 1<<20); ; { // without end
		if err := s.Send(&wire.DialOutput{Data: piece}); err != nil {
			return err
		}
	}
}

func (liar) StartKernel(ctx context.Context, req *wire.StartKernelRequest) (*wire.KernelInfo, error) {
	switch req.GetName() {
	case "stall":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, connect.NewError(connect.CodeNotFound, errLoud)
	}
	long := "\x1b[2J" + strings.Repeat("k", 1<<20)
	return &wire.KernelInfo{Name: long, Language: long, Spec: long, Dir: long, State: long, Pid: math.MinInt64, Count: math.MinInt32}, nil
}

func (liar) RestartKernel(ctx context.Context, req *wire.KernelName) (*wire.KernelDone, error) {
	if req.GetName() == "error" {
		return nil, connect.NewError(connect.CodeNotFound, errLoud)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (liar) Complete(ctx context.Context, req *wire.CompleteRequest) (*wire.CompleteResponse, error) {
	switch req.GetKernel() {
	case "stall":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, connect.NewError(connect.CodeNotFound, errLoud)
	case "huge":
		return &wire.CompleteResponse{Matches: []string{strings.Repeat("m", wire.MaxMessage)}}, nil
	case "turned":
		return &wire.CompleteResponse{Start: 3, End: 1}, nil
	}
	c := &wire.CompleteResponse{Start: math.MaxInt32, End: math.MinInt32}
	for range 100_000 {
		c.Matches = append(c.Matches, "m")
	}
	c.Matches[0] = strings.Repeat("m", 1<<20)
	return c, nil
}

func (liar) Inspect(ctx context.Context, req *wire.InspectRequest) (*wire.InspectResponse, error) {
	switch req.GetKernel() {
	case "stall":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, connect.NewError(connect.CodeNotFound, errLoud)
	case "huge":
		return &wire.InspectResponse{Mime: map[string]string{"text/plain": strings.Repeat("m", wire.MaxMessage)}}, nil
	}
	mime := map[string]string{"": "x", "text": "x", "text/\x1b": "x", "a/b/c": "x"}
	for i := range 1000 {
		mime["text/"+strings.Repeat("m", i)] = "x"
	}
	return &wire.InspectResponse{Mime: mime}, nil
}

func TestLiesOfAttach(t *testing.T) {
	g := talk(t, lying)
	for pid, want := range map[int]arenero.Code{2: arenero.Internal, 3: arenero.NotFound} {
		_, err := g.Attach(t.Context(), pid)
		if arenero.CodeOf(err) != want {
			t.Errorf("%d: %v", pid, err)
		} else {
			plain(t, "error", err.Error(), 8<<10)
		}
	}
	p, err := g.Attach(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		e, err := p.Next()
		if err != nil || e.Dropped < 0 || e.Exit != nil || len(e.Stdout) == 0 {
			t.Fatalf("%+v, %v", e.Dropped, err)
		}
	}
	if err := p.Close(); err != nil { // in the middle of the flood
		t.Error(err)
	}
	if _, err := p.Next(); err == nil {
		for err == nil { // what had come already
			_, err = p.Next()
		}
	}
}

func TestLiesOfPorts(t *testing.T) {
	g := talk(t, lying)
	for port, want := range map[int]arenero.Code{2: arenero.Internal, 3: arenero.Unavailable} {
		_, err := g.DialPort(t.Context(), port)
		if arenero.CodeOf(err) != want {
			t.Errorf("%d: %v", port, err)
		} else {
			plain(t, "error", err.Error(), 8<<10)
		}
	}
	c, err := g.DialPort(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "\xff\n" {
		t.Errorf("%q, %v", line, err)
	}
	c.Close()
	c, err = g.DialPort(t.Context(), 6)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, c, 20<<20); err != nil {
		t.Errorf("%d bytes of a flood, %v", n, err)
	}
	start := time.Now()
	if err := c.Close(); err != nil || time.Since(start) > 5*time.Second { // nobody reads the rest
		t.Errorf("close in a flood: %v after %v", err, time.Since(start))
	}
	c, err = g.DialPort(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var slow interface{ Timeout() bool }
	if _, err := io.Copy(c, endless{}); !errors.As(err, &slow) || !slow.Timeout() {
		t.Errorf("writing to a port that does not read: %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, &slow) || !slow.Timeout() {
		t.Errorf("reading from a port that does not write: %v", err)
	}
	start = time.Now()
	if err := c.Close(); err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("close: %v after %v", err, time.Since(start))
	}
}

func TestLiesOfKernelCalls(t *testing.T) {
	g := talk(t, lying)
	ctx := t.Context()
	k, err := g.StartKernel(ctx, arenero.KernelRequest{Name: "lie"})
	if err != nil || k.State != "dead" || k.PID != 0 || k.Count != 0 || len(k.Dir) > 4096 {
		t.Errorf("start: %s %d %d, %v", k.State, k.PID, k.Count, err)
	}
	for _, s := range []string{k.Name, k.Language, k.Spec} {
		plain(t, "kernel", s, 256)
	}
	const code = "import"
	for _, kernel := range []string{"lie", "turned"} {
		c, err := g.Complete(ctx, kernel, code, 3)
		if err != nil || len(c.Matches) > maxCount || c.Start < 0 || c.Start > c.End || c.End > len(code) {
			t.Errorf("complete: %d matches from %d to %d, %v", len(c.Matches), c.Start, c.End, err)
		}
		for _, m := range c.Matches {
			plain(t, "match", m, 1024)
		}
	}
	mime, err := g.Inspect(ctx, "lie", code, 3)
	if err != nil || len(mime) == 0 || len(mime) > maxMIME {
		t.Errorf("inspect: %d types, %v", len(mime), err)
	}
	for k := range mime {
		if plain(t, "type", k, 128); !mimeType(k) || !utf8.ValidString(k) {
			t.Errorf("type %q", k)
		}
	}
	_, complete := g.Complete(ctx, "huge", code, 3)
	_, inspect := g.Inspect(ctx, "huge", code, 3)
	for _, err := range []error{complete, inspect} {
		if arenero.CodeOf(err) != arenero.Exhausted {
			t.Errorf("more than a message may have: %v", err)
		}
	}
	_, start := g.StartKernel(ctx, arenero.KernelRequest{Name: "error"})
	_, complete = g.Complete(ctx, "error", code, 3)
	_, inspect = g.Inspect(ctx, "error", code, 3)
	for _, err := range []error{start, complete, inspect, g.RestartKernel(ctx, "error")} {
		if arenero.CodeOf(err) != arenero.NotFound {
			t.Errorf("an error with a code: %v", err)
		} else {
			plain(t, "error", err.Error(), 8<<10)
		}
	}
}

func TestStallsOfCalls(t *testing.T) {
	for what, f := range map[string]func(context.Context, arenero.Guest) error{
		"wake": func(ctx context.Context, g arenero.Guest) error { return g.Wake(ctx, arenero.Wake{}) },
		"attach": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.Attach(ctx, 1)
			return err
		},
		"dial": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.DialPort(ctx, 1)
			return err
		},
		"start kernel": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.StartKernel(ctx, arenero.KernelRequest{Name: "stall"})
			return err
		},
		"restart kernel": func(ctx context.Context, g arenero.Guest) error { return g.RestartKernel(ctx, "stall") },
		"complete": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.Complete(ctx, "stall", "", 0)
			return err
		},
		"inspect": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.Inspect(ctx, "stall", "", 0)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) { stalls(t, f) })
	}
}
