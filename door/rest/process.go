package rest

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// CommandBody is a command that a client asks for, in every form there is. It is
// exported because huma does not look into others.
type CommandBody struct {
	Argv    []string          `json:"argv,omitempty" maxItems:"4096" doc:"The command and its arguments; no shell looks at them"`
	Script  string            `json:"script,omitempty" doc:"Instead of argv: a script for /bin/sh inside the sandbox"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty" doc:"The work directory if left out"`
	User    string            `json:"user,omitempty" maxLength:"64" doc:"The sandbox's user if left out"`
	Timeout float64           `json:"timeout,omitempty" doc:"Seconds it may take"`
	Tag     string            `json:"tag,omitempty" maxLength:"128" doc:"A name to find it by"`
	PTY     *windowBody       `json:"pty,omitempty" doc:"A terminal instead of pipes"`
}

type windowBody struct {
	Cols int `json:"cols" minimum:"1" maximum:"1000"`
	Rows int `json:"rows" minimum:"1" maximum:"1000"`
}

func (b CommandBody) command() (arenero.Command, error) {
	const op = "start command"
	c := arenero.Command{Argv: b.Argv, Env: b.Env, Dir: b.Dir, User: b.User, Tag: b.Tag}
	switch {
	case b.Script != "" && len(b.Argv) > 0:
		return c, arenero.Errorf(arenero.Invalid, op, "", "it has both argv and script").WithHint("leave one out")
	case b.Script != "":
		c.Argv = []string{"/bin/sh", "-c", b.Script}
	case len(b.Argv) == 0:
		return c, arenero.Errorf(arenero.Invalid, op, "", "it has neither argv nor script")
	}
	if b.Dir != "" {
		if err := checkPath(b.Dir); err != nil {
			return c, err
		}
	}
	if b.PTY != nil {
		w, err := b.PTY.window()
		if err != nil {
			return c, err
		}
		c.PTY = &w
	}
	var err error
	c.Timeout, err = seconds("timeout", b.Timeout)
	return c, err
}

func (b windowBody) window() (arenero.Window, error) {
	if b.Cols < 1 || b.Cols > 1000 || b.Rows < 1 || b.Rows > 1000 {
		return arenero.Window{}, arenero.Errorf(arenero.Invalid, "check terminal", "", "it has %d columns and %d rows, both must be between 1 and 1000", b.Cols, b.Rows)
	}
	return arenero.Window{Cols: uint16(b.Cols), Rows: uint16(b.Rows)}, nil
}

type processesResponse struct {
	Body struct {
		Processes []arenero.ProcessInfo `json:"processes"`
	}
}

func (d *Door) listProcesses(ctx context.Context, in *ByID) (*processesResponse, error) {
	g, err := d.guest(ctx, in.ID, host.ScopeRead)
	if err != nil {
		return nil, err
	}
	all, err := g.ListProcesses(ctx)
	if err != nil {
		return nil, err
	}
	out := &processesResponse{}
	out.Body.Processes = append([]arenero.ProcessInfo{}, all...)
	return out, nil
}

type startProcessRequest struct {
	ByID
	ByRetry

	Body struct {
		CommandBody

		Stdin bool  `json:"stdin,omitempty" doc:"It will be written to, through its socket"`
		Keep  int64 `json:"keep,omitempty" minimum:"0" maximum:"67108864" doc:"Bytes of each stream that are kept for those who attach; 64 KiB if left out"`
	}
}

type startProcessResponse struct {
	Replayed string `header:"Idempotency-Replayed"`
	Body     struct {
		PID int `json:"pid"`
	}
}

// startProcess starts a command that goes on by itself.
func (d *Door) startProcess(ctx context.Context, in *startProcessRequest) (*startProcessResponse, error) {
	c, err := in.Body.command()
	if err != nil {
		return nil, err
	}
	c.Detach, c.Stdin, c.OutputKeep = true, in.Body.Stdin, in.Body.Keep
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	pid, again, err := once(ctx, d, in.IdempotencyKey, "start "+in.ID, in.Body, func(ctx context.Context) (int, error) {
		p, err := g.Start(ctx, c)
		if err != nil {
			return 0, err
		}
		return p.PID(), p.Close()
	})
	if err != nil {
		return nil, err
	}
	out := &startProcessResponse{Replayed: replayed(again)}
	out.Body.PID = pid
	return out, nil
}

// ByProcess is the part of a request that names a process.
type ByProcess struct {
	ByID

	PID int `path:"pid" minimum:"1" maximum:"4194304"`
}

// attach sends what a process has written and writes, and how it ends.
func (d *Door) attach(ctx context.Context, in *ByProcess) (*huma.StreamResponse, error) {
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	p, err := g.Attach(ctx, in.PID)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer p.Close()
		s := openEvents(askerOf(ctx))
		defer s.close()
		s.process(p)
	}}, nil
}

type signalRequest struct {
	ByProcess

	Body struct {
		Signal string `json:"signal" maxLength:"16" example:"SIGTERM"`
		Tree   bool   `json:"tree,omitempty" doc:"To all that it started, too"`
	}
}

func (d *Door) signalProcess(ctx context.Context, in *signalRequest) (*nothing, error) {
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	return nil, g.Signal(ctx, in.PID, in.Body.Signal, in.Body.Tree)
}
