package dial

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

var errLoud = errors.New(strings.Repeat("e", 1<<16) + "\r\n\x1b[2J\xff")

// ReadFile does what the name of the file says.
func (liar) ReadFile(ctx context.Context, req *wire.ReadFileRequest, s *connect.ServerStream[wire.ReadFileResponse]) error {
	switch string(req.GetPath()) {
	case "gone":
		return nil // not even a description
	case "silent":
		<-ctx.Done()
		return ctx.Err()
	}
	if err := s.Send(&wire.ReadFileResponse{Info: &wire.FileInfo{Path: []byte("\xff"), Size: -1}, Data: []byte("abc")}); err != nil {
		return err
	}
	switch string(req.GetPath()) {
	case "stall":
		<-ctx.Done()
		return ctx.Err()
	case "error":
		return connect.NewError(connect.CodeInternal, errLoud)
	}
	for piece := make([]byte, 64<<10); ; { // without end
		if err := s.Send(&wire.ReadFileResponse{Data: piece}); err != nil {
			return err
		}
	}
}

// WriteFile does what the name of the file says.
func (liar) WriteFile(ctx context.Context, s *connect.ClientStream[wire.WriteFileRequest]) (*wire.StatResponse, error) {
	s.Receive()
	answer := &wire.StatResponse{Info: &wire.FileInfo{
		Path: bytes.Repeat([]byte("\xff/"), 1<<20), Size: math.MinInt64, Mode: math.MaxUint32, Owner: strings.Repeat("o", 1<<20), Link: make([]byte, 1<<20),
	}}
	switch string(s.Msg().GetStart().GetPath()) {
	case "early": // as if all of it had come
		return &wire.StatResponse{}, nil
	case "early and long": // so that it waits to be read
		return answer, nil
	case "stall":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, connect.NewError(connect.CodeInternal, errLoud)
	case "nothing":
		return &wire.StatResponse{}, drain(s)
	case "swallow":
		err := drain(s)
		<-ctx.Done()
		return nil, err
	}
	return answer, drain(s)
}

// ReadTree does what the name of the folder says.
func (liar) ReadTree(ctx context.Context, req *wire.ReadTreeRequest, s *connect.ServerStream[wire.ReadTreeResponse]) error {
	switch string(req.GetPath()) {
	case "gone":
		return nil
	case "silent":
		<-ctx.Done()
		return ctx.Err()
	}
	if err := s.Send(&wire.ReadTreeResponse{}); err != nil {
		return err
	}
	if string(req.GetPath()) == "error" {
		return connect.NewError(connect.CodeInternal, errLoud)
	}
	for piece := make([]byte, 64<<10); ; { // without end
		if err := s.Send(&wire.ReadTreeResponse{Data: piece}); err != nil {
			return err
		}
	}
}

// WriteTree does what the name of the folder says.
func (liar) WriteTree(ctx context.Context, s *connect.ClientStream[wire.WriteTreeRequest]) (*wire.WriteTreeResponse, error) {
	s.Receive()
	switch string(s.Msg().GetStart().GetPath()) {
	case "early":
		return &wire.WriteTreeResponse{Files: 1}, nil
	case "stall":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, connect.NewError(connect.CodeInternal, errLoud)
	case "negative":
		return &wire.WriteTreeResponse{Files: math.MinInt64, Bytes: math.MinInt64}, drain(s)
	}
	return &wire.WriteTreeResponse{Files: math.MaxInt64, Bytes: math.MaxInt64}, drain(s)
}

func drain[T any](s *connect.ClientStream[T]) error {
	for s.Receive() {
	}
	return s.Err()
}

// Watch does what the name of the folder says.
func (liar) Watch(ctx context.Context, req *wire.WatchRequest, s *connect.ServerStream[wire.WatchResponse]) error {
	switch string(req.GetPath()) {
	case "gone":
		return nil
	case "silent":
		<-ctx.Done()
		return ctx.Err()
	case "error":
		return connect.NewError(connect.CodeInternal, errLoud)
	}
	if err := s.Send(&wire.WatchResponse{}); err != nil {
		return err
	}
	switch string(req.GetPath()) {
	case "odd":
		return s.Send(&wire.WatchResponse{Op: "\x1b[2J", Path: []byte("x")})
	case "lie":
		return s.Send(&wire.WatchResponse{Op: "write", Path: bytes.Repeat([]byte("\xff"), 1<<20), Dropped: math.MinInt32})
	}
	for { // without end
		if err := s.Send(&wire.WatchResponse{Op: "write", Path: []byte("x"), Dropped: math.MaxInt32}); err != nil {
			return err
		}
	}
}

// endless is a source that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestLiesOfReads(t *testing.T) {
	g := talk(t, lying)
	ctx := t.Context()
	if _, _, err := g.ReadFile(ctx, "", "gone", 0, -1); arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("a file without a description: %v", err)
	}
	// Never more than was asked for, whether in the first message or later.
	if _, _, err := g.ReadFile(ctx, "", "flood", 0, 2); arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("3 bytes instead of 2: %v", err)
	}
	for name, most := range map[string]int{"flood": 100, "error": 3} {
		r, info, err := g.ReadFile(ctx, "", name, 0, 100)
		if err != nil || info.Size != 0 {
			t.Fatalf("%s: %+v, %v", name, info, err)
		}
		b, err := io.ReadAll(r)
		if len(b) > most || arenero.CodeOf(err) != arenero.Internal {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		} else {
			plain(t, name, err.Error(), 8<<10)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLiesOfWrites(t *testing.T) {
	g := talk(t, lying)
	ctx := t.Context()
	info, err := g.WriteFile(ctx, "", "lie", 0, strings.NewReader("x"))
	if err != nil || info.Size != 0 || len(info.Path) > maxPath || len(info.Link) > maxPath || len(info.Owner) > 64 || strings.ContainsRune(info.Name, '/') {
		t.Errorf("write: %d bytes of path, %d of link, %+v, %v", len(info.Path), len(info.Link), info.Size, err)
	}
	if _, err := g.WriteFile(ctx, "", "nothing", 0, strings.NewReader("x")); err != nil {
		t.Errorf("an answer without a description: %v", err)
	}
	// What was not taken was not written, whatever the guest says.
	if _, err := g.WriteFile(ctx, "", "early", 0, endless{}); err == nil {
		t.Error("a file that nobody took is written")
	}
	_, err = g.WriteFile(ctx, "", "error", 0, endless{})
	if arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("error: %v", err)
	} else {
		plain(t, "error", err.Error(), 8<<10)
	}
	// The caller's own error is told as such, and nothing is waited for.
	broke := errors.New("broke")
	_, err = g.WriteFile(ctx, "", "stall", 0, io.MultiReader(strings.NewReader("x"), readerFunc(func([]byte) (int, error) { return 0, broke })))
	if arenero.CodeOf(err) != arenero.Invalid || !errors.Is(err, broke) {
		t.Errorf("a source that broke: %v", err)
	}
}

func TestLiesOfTrees(t *testing.T) {
	g := talk(t, lying)
	ctx := t.Context()
	if _, err := g.ReadTree(ctx, "", "gone"); arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("a tree without a word: %v", err)
	}
	r, err := g.ReadTree(ctx, "", "error")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); len(b) > 0 || arenero.CodeOf(err) != arenero.Internal {
		t.Errorf("%d bytes, %v", len(b), err)
	} else {
		plain(t, "error", err.Error(), 8<<10)
	}
	r.Close()
	if r, err = g.ReadTree(ctx, "", "flood"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, r, 10<<20); err != nil {
		t.Errorf("%d bytes of a flood, %v", n, err)
	}
	r.Close() // in the middle of it
	for _, name := range []string{"huge", "negative"} {
		info, err := g.WriteTree(ctx, "", name, strings.NewReader("x"))
		if err != nil || info.Files < 0 || info.Files > arenero.MaxTreeEntries || info.Bytes < 0 {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	for _, name := range []string{"early", "error"} {
		_, err := g.WriteTree(ctx, "", name, endless{})
		if arenero.CodeOf(err) != arenero.Internal {
			t.Errorf("%s: %v", name, err)
		} else {
			plain(t, name, err.Error(), 8<<10)
		}
	}
}

func TestLiesOfWatches(t *testing.T) {
	g := talk(t, lying)
	for _, name := range []string{"gone", "error"} {
		_, err := g.Watch(t.Context(), "", name, true)
		if arenero.CodeOf(err) != arenero.Internal {
			t.Errorf("%s: %v", name, err)
		} else {
			plain(t, name, err.Error(), 8<<10)
		}
	}
	events, err := g.Watch(t.Context(), "", "odd", true)
	if err != nil {
		t.Fatal(err)
	}
	for e := range events { // and it is closed
		t.Errorf("odd: %+v", e)
	}
	events, err = g.Watch(t.Context(), "", "lie", true)
	if err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if len(e.Path) > maxPath || e.Dropped != 0 {
			t.Errorf("lie: %d bytes of path, %d dropped", len(e.Path), e.Dropped)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err = g.Watch(ctx, "", "flood", true)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if e := <-events; e.Dropped < 0 || e.Dropped > 1<<31 {
			t.Fatalf("%d dropped", e.Dropped)
		}
	}
	cancel()
	deadline := time.After(5 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-events:
		case <-deadline:
			t.Fatal("the watch goes on after its context")
		}
	}
}

// A guest that stands still in the middle of a transfer is given up.
func TestStallsOfFiles(t *testing.T) {
	for what, f := range map[string]func(context.Context, arenero.Guest) error{
		"read": func(ctx context.Context, g arenero.Guest) error {
			_, _, err := g.ReadFile(ctx, "", "silent", 0, -1)
			return err
		},
		"read on": func(ctx context.Context, g arenero.Guest) error {
			r, _, err := g.ReadFile(ctx, "", "stall", 0, -1)
			if err != nil {
				return nil
			}
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"write": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.WriteFile(ctx, "", "stall", 0, endless{})
			return err
		},
		"write's early answer": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.WriteFile(ctx, "", "early and long", 0, endless{})
			return err
		},
		"write's answer": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.WriteFile(ctx, "", "swallow", 0, strings.NewReader("x"))
			return err
		},
		"read tree": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.ReadTree(ctx, "", "silent")
			return err
		},
		"write tree": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.WriteTree(ctx, "", "stall", endless{})
			return err
		},
		"watch": func(ctx context.Context, g arenero.Guest) error {
			_, err := g.Watch(ctx, "", "silent", true)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) { stalls(t, f) })
	}
}

func stalls(t *testing.T, f func(context.Context, arenero.Guest) error) {
	t.Helper()
	g := talk(t, lying)
	g.(*Guest).limit = 50 * time.Millisecond
	start := time.Now()
	err := f(t.Context(), g)
	if arenero.CodeOf(err) != arenero.Timeout || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// A source that is slow is no stall: only the guest's time counts.
func TestSlowSourceIsNoStall(t *testing.T) {
	g := talk(t, lying)
	g.(*Guest).limit = 500 * time.Millisecond
	left := 2
	slow := readerFunc(func(p []byte) (int, error) {
		if left--; left < 0 {
			return 0, io.EOF
		}
		time.Sleep(1200 * time.Millisecond)
		return copy(p, "x"), nil
	})
	if _, err := g.WriteFile(t.Context(), "", "nothing", 0, slow); err != nil {
		t.Error(err)
	}
}
