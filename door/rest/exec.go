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

	Accept string `header:"Accept"`
	Body   struct {
		Argv    []string          `json:"argv" minItems:"1" maxItems:"4096" doc:"The command and its arguments; no shell looks at them"`
		Env     map[string]string `json:"env,omitempty"`
		Dir     string            `json:"dir,omitempty" doc:"The work directory if left out"`
		Stdin   string            `json:"stdin,omitempty" doc:"What it reads from standard input"`
		Timeout float64           `json:"timeout,omitempty" doc:"Seconds it may take; the sandbox's default if left out"`
	}
}

// exec runs a command to its end, and answers in one of three forms.
func (d *Door) exec(ctx context.Context, in *execRequest) (*huma.StreamResponse, error) {
	timeout, err := seconds("timeout", in.Body.Timeout)
	if err != nil {
		return nil, err
	}
	if in.Body.Dir != "" {
		if err := checkPath(in.Body.Dir); err != nil {
			return nil, err
		}
	}
	keep, err := d.keep(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	p, err := g.Start(ctx, arenero.Command{
		Argv: in.Body.Argv, Env: in.Body.Env, Dir: in.Body.Dir, Timeout: timeout, Stdin: in.Body.Stdin != "",
	})
	if err != nil {
		return nil, err
	}
	fed := feed(p, in.Body.Stdin)
	finish := func() { // Close breaks a write that still waits
		_ = p.Close() // how it ended has been told
		<-fed
	}
	switch {
	case accepts(in.Accept, "text/event-stream"):
		return &huma.StreamResponse{Body: func(huma.Context) {
			defer finish()
			s := openEvents(askerOf(ctx))
			defer s.close()
			s.process(p)
		}}, nil
	case accepts(in.Accept, "application/octet-stream"):
		return &huma.StreamResponse{Body: func(huma.Context) {
			defer finish()
			raw(askerOf(ctx).w, p)
		}}, nil
	}
	defer finish()
	c := host.NewCollector(keep)
	if err := host.CollectProcess(p, c, nil); err != nil {
		return nil, err
	}
	return answer(c.Result()), nil
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
