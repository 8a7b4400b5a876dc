package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// The protocol of a process over a WebSocket (RFC 6455). For a new process the
// client's first message is a text: the command, as JSON. From then on its binary
// messages are stdin and its texts are one of
//
//	{"resize":{"cols":80,"rows":24}}  {"close_stdin":true}  {"signal":"SIGINT"}
//
// The server sends the text {"pid":7}, then binary messages whose first byte says
// of which stream they are, and at the end the text {"exit":{...}} or
// {"problem":{...}} and closes.
const (
	frameStdout = 1
	frameStderr = 2

	maxFrame = 1 << 20
)

type socketWord struct {
	Resize     *windowBody `json:"resize,omitempty"`
	CloseStdin bool        `json:"close_stdin,omitempty"`
	Signal     string      `json:"signal,omitempty"`
}

type socketNews struct {
	PID     int       `json:"pid,omitempty"`
	Exit    *endEvent `json:"exit,omitempty"`
	Problem *Problem  `json:"problem,omitempty"`
}

// execSocket starts a command whose stdin and terminal are the client's. It is
// killed when the client goes away.
func (d *Door) execSocket(w http.ResponseWriter, r *http.Request) {
	d.socket(w, r, func(ctx context.Context, c *websocket.Conn, g arenero.Guest) (arenero.Process, error) {
		first, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		kind, raw, err := c.Read(first)
		if err != nil {
			return nil, arenero.Errorf(arenero.Canceled, "read command", "", "%w", err)
		}
		var body CommandBody
		if err := json.Unmarshal(raw, &body); err != nil || kind != websocket.MessageText {
			return nil, arenero.Errorf(arenero.Invalid, "read command", "", "the first message must be the command, as JSON")
		}
		cmd, err := body.command()
		if err != nil {
			return nil, err
		}
		cmd.Stdin = true
		return g.Start(ctx, cmd)
	})
}

// processSocket attaches to a process that runs.
func (d *Door) processSocket(w http.ResponseWriter, r *http.Request) {
	d.socket(w, r, func(ctx context.Context, _ *websocket.Conn, g arenero.Guest) (arenero.Process, error) {
		pid, err := strconv.Atoi(r.PathValue("pid"))
		if err != nil || pid < 1 {
			return nil, arenero.Errorf(arenero.Invalid, "attach process", "", "the pid is not a number")
		}
		return g.Attach(ctx, pid)
	})
}

func (d *Door) socket(w http.ResponseWriter, r *http.Request, open func(context.Context, *websocket.Conn, arenero.Guest) (arenero.Process, error)) {
	g, err := d.guest(r.Context(), r.PathValue("id"), host.ScopeRun)
	if err != nil {
		refuse(w, problemOf(err))
		return
	}
	// The origin was checked as that of every request was.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // it has answered
	}
	defer c.CloseNow() //nolint:errcheck // the last word was said, or nobody listens
	c.SetReadLimit(maxFrame)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p, err := open(ctx, c, g)
	if err != nil {
		_ = say(ctx, c, socketNews{Problem: problemOf(told(ctx, err))})
		_ = c.Close(websocket.StatusNormalClosure, "")
		return
	}
	defer p.Close()
	heard := make(chan struct{})
	go func() { // joined below: it ends with the connection
		defer close(heard)
		defer cancel()
		hear(ctx, c, g, p)
	}()
	if tell(ctx, c, p) {
		_ = c.Close(websocket.StatusNormalClosure, "")
	}
	cancel()
	<-heard
}

// hear passes on what the client says, until it goes away.
func hear(ctx context.Context, c *websocket.Conn, g arenero.Guest, p arenero.Process) {
	for {
		kind, raw, err := c.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if _, err := p.Write(raw); err != nil {
				continue // it has closed its input: what it writes is still of use
			}
			continue
		}
		var word socketWord
		if err := json.Unmarshal(raw, &word); err != nil {
			_ = c.Close(websocket.StatusUnsupportedData, "not a message of this protocol")
			return
		}
		switch {
		case word.Resize != nil:
			if win, err := word.Resize.window(); err == nil {
				_ = p.Resize(win) // a process that is gone needs no size
			}
		case word.CloseStdin:
			_ = p.CloseStdin() // likewise
		case word.Signal != "":
			_ = g.Signal(ctx, p.PID(), word.Signal, true) // likewise
		}
	}
}

// tell sends what the process writes and how it ends; true when that was said.
func tell(ctx context.Context, c *websocket.Conn, p arenero.Process) bool {
	if say(ctx, c, socketNews{PID: p.PID()}) != nil {
		return false
	}
	end := host.NewCollector(0)
	for {
		e, err := p.Next()
		switch {
		case err != nil:
			return say(ctx, c, socketNews{Problem: problemOf(told(ctx, err))}) == nil
		case e.Exit != nil:
			end.Process(arenero.ProcessEvent{Exit: e.Exit})
			last := endOf(end)
			return say(ctx, c, socketNews{Exit: &last}) == nil
		case len(e.Stdout) > 0:
			err = frame(ctx, c, frameStdout, e.Stdout)
		case len(e.Stderr) > 0:
			err = frame(ctx, c, frameStderr, e.Stderr)
		}
		if err != nil {
			return false
		}
	}
}

func say(ctx context.Context, c *websocket.Conn, news socketNews) error {
	raw, err := json.Marshal(news)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return c.Write(ctx, websocket.MessageText, raw)
}

func frame(ctx context.Context, c *websocket.Conn, stream byte, p []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return c.Write(ctx, websocket.MessageBinary, append([]byte{stream}, p...))
}
