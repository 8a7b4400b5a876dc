package rest

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

type execRequest struct {
	ByID
	ByRetry

	Accept string `header:"Accept"`
	Body   struct {
		CommandBody

		Stdin string `json:"stdin,omitempty" doc:"What it reads from standard input"`
	}
}

// exec runs a command to its end, and answers in one of three forms.
func (d *Door) exec(ctx context.Context, in *execRequest) (*huma.StreamResponse, error) {
	c, err := in.Body.command()
	if err != nil {
		return nil, err
	}
	if c.PTY != nil {
		return nil, arenero.Errorf(arenero.Invalid, "start command", "", "a terminal needs a WebSocket").WithHint("use /v1/sandboxes/{id}/exec/ws")
	}
	c.Stdin = in.Body.Stdin != ""
	keep, err := d.keep(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	streamed := accepts(in.Accept, "text/event-stream") || accepts(in.Accept, "application/octet-stream")
	if in.IdempotencyKey != "" {
		if streamed {
			return nil, noStreamOnce()
		}
		return d.resultOnce(ctx, in.IdempotencyKey, "exec "+in.ID, in.Body, func(ctx context.Context) (arenero.Result, error) {
			return runCommand(ctx, g, c, in.Body.Stdin, keep)
		})
	}
	if !streamed {
		r, err := runCommand(ctx, g, c, in.Body.Stdin, keep)
		if err != nil {
			return nil, err
		}
		return answer(r), nil
	}
	p, err := g.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	fed := feed(p, in.Body.Stdin)
	finish := func() { // Close breaks a write that still waits
		_ = p.Close() // how it ended has been told
		<-fed
	}
	if accepts(in.Accept, "text/event-stream") {
		return &huma.StreamResponse{Body: func(huma.Context) {
			defer finish()
			s := openEvents(askerOf(ctx))
			defer s.close()
			s.process(p)
		}}, nil
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer finish()
		raw(askerOf(ctx).w, p)
	}}, nil
}

// runCommand runs a command to its end.
func runCommand(ctx context.Context, g arenero.Guest, c arenero.Command, stdin string, keep int64) (arenero.Result, error) {
	p, err := g.Start(ctx, c)
	if err != nil {
		return arenero.Result{}, err
	}
	fed := feed(p, stdin)
	defer func() {
		_ = p.Close() // how it ended has been told; this breaks a write that still waits
		<-fed
	}()
	all := host.NewCollector(keep)
	err = host.CollectProcess(p, all, nil)
	return all.Result(), err
}

// resultOnce is [once] for a run, whose answer is its result.
func (d *Door) resultOnce(ctx context.Context, key, route string, request any, f func(context.Context) (arenero.Result, error)) (*huma.StreamResponse, error) {
	r, again, err := once(ctx, d, key, route, request, f)
	if err != nil {
		return nil, err
	}
	if again {
		askerOf(ctx).w.Header().Set("Idempotency-Replayed", "true")
	}
	return answer(r), nil
}

func noStreamOnce() error {
	return arenero.Errorf(arenero.Invalid, "read request", "", "a stream can not be sent again: an idempotency key needs a plain JSON answer").
		WithHint("leave out the key, or ask for application/json")
}

// feed writes stdin beside the reading of the output, so that neither waits for
// the other. The channel is closed when it is done.
func feed(p arenero.Process, stdin string) <-chan struct{} {
	fed := make(chan struct{})
	if stdin == "" {
		close(fed)
		return fed
	}
	go func() { // joined through the channel
		defer close(fed)
		if _, err := io.WriteString(p, stdin); err == nil {
			_ = p.CloseStdin() // a process that is gone needs no end of input
		}
	}()
	return fed
}

// keptStderr is how much of stderr goes into a trailer.
const keptStderr = 2 << 10

// raw sends stdout as it is, piece by piece; how the command ended is in the
// trailers. An answer without them was cut off.
func raw(w http.ResponseWriter, p arenero.Process) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("Trailer", "Arenero-Exit-Code, Arenero-Exit-Reason, Arenero-Stderr")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	c := host.NewCollector(keptStderr)
	for {
		e, err := p.Next()
		if err != nil {
			panic(http.ErrAbortHandler) // a broken answer must not look whole
		}
		if len(e.Stdout) > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have none
			if _, err := w.Write(e.Stdout); err != nil {
				return
			}
			if err := rc.Flush(); err != nil {
				return
			}
			continue
		}
		c.Process(e)
		if e.Exit != nil {
			r := c.Result()
			h.Set("Arenero-Exit-Code", strconv.Itoa(r.ExitCode))
			h.Set("Arenero-Exit-Reason", strings.Map(headerRune, string(r.ExitReason)))
			h.Set("Arenero-Stderr", url.QueryEscape(r.Stderr))
			return
		}
	}
}

func headerRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r == '_' {
		return r
	}
	return -1
}
