package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"github.com/arenero/arenero"
)

// A Session is a command whose input, output and terminal are the caller's, over
// a WebSocket. Next and Write may be called from different goroutines.
type Session struct {
	c   *websocket.Conn
	ctx context.Context // of the call that opened it
	pid int
	mu  sync.Mutex
}

// Shell is a command for [Sandbox.Open].
type Shell struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	Dir  string            `json:"dir,omitempty"`
	User string            `json:"user,omitempty"`
	PTY  *Window           `json:"pty,omitempty"` // nil is pipes
}

// Window is the size of a terminal.
type Window struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Open starts a command. It is killed when the session is closed or ctx ends.
func (s *Sandbox) Open(ctx context.Context, sh Shell) (*Session, error) {
	const op = "open session"
	c, err := s.dial(ctx, op, "/exec/ws")
	if err != nil {
		return nil, err
	}
	x := &Session{c: c, ctx: ctx}
	if err := x.word(sh); err != nil {
		_ = c.CloseNow() // the first error says more
		return nil, err
	}
	if err := x.begun(); err != nil {
		return nil, err
	}
	return x, nil
}

// Join takes up a process that [Sandbox.Start] started, with its input: what was
// kept of its output comes first. It goes on when the session is closed.
func (s *Sandbox) Join(ctx context.Context, pid int) (*Session, error) {
	c, err := s.dial(ctx, "join process", "/processes/"+strconv.Itoa(pid)+"/ws")
	if err != nil {
		return nil, err
	}
	x := &Session{c: c, ctx: ctx}
	if err := x.begun(); err != nil {
		return nil, err
	}
	return x, nil
}

// begun waits until the server has said which process it is.
func (x *Session) begun() error {
	for x.pid == 0 {
		if _, err := x.Next(); err != nil {
			_ = x.c.CloseNow() // the first error says more
			return err
		}
	}
	return nil
}

func (s *Sandbox) dial(ctx context.Context, op, rest string) (*websocket.Conn, error) {
	target := s.c.base() + s.path(rest)
	hc := *s.c.http()
	hc.Timeout = 0 // a session lasts as long as its process
	opts := &websocket.DialOptions{HTTPClient: &hc, HTTPHeader: http.Header{}}
	s.c.sign(opts.HTTPHeader)
	//nolint:bodyclose // the library closes it, and leaves a bounded part to read
	c, resp, err := websocket.Dial(ctx, target, opts)
	if err != nil {
		if resp != nil && resp.StatusCode >= 400 {
			return nil, problem(op, resp)
		}
		return nil, broken(ctx, op, err)
	}
	c.SetReadLimit(4 << 20)
	return c, nil
}

// PID is the pid of the command.
func (x *Session) PID() int { return x.pid }

// Next returns the next piece of output, or the exit; after it, io.EOF.
func (x *Session) Next() (arenero.ProcessEvent, error) {
	const op = "follow session"
	kind, raw, err := x.c.Read(x.ctx)
	if err != nil {
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return arenero.ProcessEvent{}, io.EOF
		}
		return arenero.ProcessEvent{}, broken(x.ctx, op, err)
	}
	if kind == websocket.MessageBinary {
		switch {
		case len(raw) > 0 && raw[0] == 1:
			return arenero.ProcessEvent{Stdout: raw[1:]}, nil
		case len(raw) > 0 && raw[0] == 2:
			return arenero.ProcessEvent{Stderr: raw[1:]}, nil
		}
		return arenero.ProcessEvent{}, arenero.Errorf(arenero.Internal, op, "", "a message of no known stream")
	}
	var news struct {
		PID  int `json:"pid"`
		Exit *struct {
			Code   int                `json:"exit_code"`
			Reason arenero.ExitReason `json:"exit_reason"`
			Signal string             `json:"signal"`
		} `json:"exit"`
		Problem *refusal `json:"problem"`
	}
	if err := json.Unmarshal(raw, &news); err != nil {
		return arenero.ProcessEvent{}, arenero.Errorf(arenero.Internal, op, "", "%w", err)
	}
	if p := news.Problem; p != nil {
		return arenero.ProcessEvent{}, p.error(op)
	}
	if news.PID != 0 {
		x.pid = news.PID
	}
	if e := news.Exit; e != nil {
		return arenero.ProcessEvent{Exit: &arenero.ProcessExit{Code: e.Code, Reason: e.Reason, Signal: e.Signal}}, nil
	}
	return arenero.ProcessEvent{}, nil
}

// Write sends to the command's input or terminal.
func (x *Session) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		k := min(len(p)-n, 512<<10)
		if err := x.say(websocket.MessageBinary, p[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return len(p), nil
}

// CloseStdin ends the command's input.
func (x *Session) CloseStdin() error { return x.word(map[string]bool{"close_stdin": true}) }

// Resize tells the command the size of its terminal.
func (x *Session) Resize(w Window) error { return x.word(map[string]Window{"resize": w}) }

// Signal sends a signal ("SIGINT") to the command and all that it started.
func (x *Session) Signal(name string) error { return x.word(map[string]string{"signal": name}) }

func (x *Session) word(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.say(websocket.MessageText, raw)
}

func (x *Session) say(kind websocket.MessageType, raw []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.c.Write(x.ctx, kind, raw); err != nil {
		return broken(x.ctx, "write to session", err)
	}
	return nil
}

// Close ends the session; a command that still runs is killed.
func (x *Session) Close() error {
	err := x.c.CloseNow()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
