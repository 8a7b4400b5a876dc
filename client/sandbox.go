package client

import (
	"cmp"
	"context"
	"io"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/arenero/arenero"
)

// Spec is the sandbox that [Client.Create] asks for. The zero value is one of the
// image python with the server's default limits.
type Spec struct {
	Image     string
	Snapshot  string // id of a snapshot to start from instead of an image
	Engine    string
	Limits    arenero.Limits
	Env       map[string]string
	Labels    map[string]string
	Hostname  string
	Lifetime  time.Duration     // until OnTimeout happens; 0 is the server's default
	Idle      time.Duration     // unused and at rest for so long, it sleeps; below 0 is never
	OnTimeout arenero.OnTimeout // "" is kill
	Wait      time.Duration     // how long it may queue for a place

	Volumes []arenero.VolumeMount

	// IdempotencyKey makes a repeated call get the answer of the first. Without
	// one, each call has a key of its own.
	IdempotencyKey string
}

// A Sandbox is one on the server. Info is what was known when it was made, found
// or refreshed.
type Sandbox struct {
	Info arenero.Sandbox
	c    *Client
}

// Create makes a sandbox and returns when it can be used. Kill it when done; it
// ends by itself after its lifetime. When the connection fails it asks again,
// under one idempotency key: there is never a second sandbox.
func (c *Client) Create(ctx context.Context, s Spec) (*Sandbox, error) {
	body := struct {
		Image     string            `json:"image,omitempty"`
		Snapshot  string            `json:"snapshot,omitempty"`
		Engine    string            `json:"engine,omitempty"`
		Limits    limits            `json:"limits"`
		Env       map[string]string `json:"env,omitempty"`
		Labels    map[string]string `json:"labels,omitempty"`
		Hostname  string            `json:"hostname,omitempty"`
		Lifetime  float64           `json:"lifetime,omitempty"`
		Idle      float64           `json:"idle,omitempty"`
		OnTimeout arenero.OnTimeout `json:"on_timeout,omitempty"`
		Wait      float64           `json:"wait,omitempty"`

		Volumes []arenero.VolumeMount `json:"volumes,omitempty"`
	}{
		s.Image, s.Snapshot, s.Engine, limitsOf(s.Limits), s.Env, s.Labels, s.Hostname,
		s.Lifetime.Seconds(), s.Idle.Seconds(), s.OnTimeout, s.Wait.Seconds(),
		s.Volumes,
	}
	sb := &Sandbox{c: c}
	if err := c.callOnce(ctx, "create sandbox", "POST", "/v1/sandboxes", cmp.Or(s.IdempotencyKey, newKey()), body, &sb.Info); err != nil {
		return nil, err
	}
	return sb, nil
}

// Get finds a sandbox by its id. [arenero.NotFound] when there is none.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	sb := &Sandbox{c: c}
	if err := c.call(ctx, "get sandbox", "GET", "/v1/sandboxes/"+escape(id), nil, &sb.Info); err != nil {
		return nil, err
	}
	return sb, nil
}

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.Info.ID }

func (s *Sandbox) path(rest string) string { return "/v1/sandboxes/" + escape(s.Info.ID) + rest }

// Refresh asks for the sandbox's state.
func (s *Sandbox) Refresh(ctx context.Context) error {
	return s.change(ctx, "get sandbox", "GET", s.path(""), nil)
}

// change makes a request that answers with the sandbox as it is then. Nothing of
// what was known before stays.
func (s *Sandbox) change(ctx context.Context, op, method, path string, in any) error {
	var info arenero.Sandbox
	if err := s.c.call(ctx, op, method, path, in, &info); err != nil {
		return err
	}
	s.Info = info
	return nil
}

// Kill ends the sandbox; nothing of it is left when it returns. One that has
// ended is no error.
func (s *Sandbox) Kill(ctx context.Context) error {
	return s.c.call(ctx, "kill sandbox", "DELETE", s.path(""), nil, nil)
}

// A Command is a process to run in a sandbox. No shell looks at Argv; Script, in
// its place, is run by the sandbox's /bin/sh.
type Command struct {
	Argv    []string          `json:"argv,omitempty"`
	Script  string            `json:"script,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`  // "" is the work directory
	User    string            `json:"user,omitempty"` // "" is the sandbox's
	Tag     string            `json:"tag,omitempty"`  // a name to find it by
	Stdin   string            `json:"-"`              // what it reads
	Timeout time.Duration     `json:"-"`              // 0 is the sandbox's default

	IdempotencyKey string `json:"-"` // with it, a repeated Exec or Start gets the answer of the first
}

type command struct {
	Command

	Timeout float64 `json:"timeout,omitempty"`
}

func (c Command) wire() command { return command{c, c.Timeout.Seconds()} }

func (c Command) body() any {
	return struct {
		command

		Stdin string `json:"stdin,omitempty"`
	}{c.wire(), c.Stdin}
}

// Exec runs a command to its end.
func (s *Sandbox) Exec(ctx context.Context, cmd Command) (arenero.Result, error) {
	var res arenero.Result
	err := s.c.callOnce(ctx, "exec", "POST", s.path("/exec"), cmd.IdempotencyKey, cmd.body(), &res)
	return res, err
}

// Stream runs a command and goes through what it prints as it comes. The last
// event has Exit set, or the error is set. Breaking off kills the command.
func (s *Sandbox) Stream(ctx context.Context, cmd Command) iter.Seq2[arenero.ProcessEvent, error] {
	return func(yield func(arenero.ProcessEvent, error) bool) {
		for e, err := range s.c.events(ctx, "exec", s.path("/exec"), cmd.body()) {
			var out arenero.ProcessEvent
			if err == nil {
				out, err = processEvent(e)
			}
			if err == nil && out.Exit == nil && out.Stdout == nil && out.Stderr == nil {
				continue // the start, or an event of a newer server
			}
			if !yield(out, err) || err != nil || out.Exit != nil {
				return
			}
		}
	}
}

// Copy runs a command and writes its standard output to w as fast as it comes,
// without a bound. The result holds how it ended and the end of its stderr; its
// Stdout is empty.
func (s *Sandbox) Copy(ctx context.Context, w io.Writer, cmd Command) (arenero.Result, error) {
	const op = "exec"
	resp, err := s.c.post(ctx, op, s.path("/exec"), "application/octet-stream", cmd.body())
	if err != nil {
		return arenero.Result{}, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return arenero.Result{}, broken(ctx, op, err)
	}
	code, err := strconv.Atoi(resp.Trailer.Get("Arenero-Exit-Code"))
	if err != nil {
		return arenero.Result{}, arenero.Errorf(arenero.Unavailable, op, "", "the answer was cut off")
	}
	stderr, _ := url.QueryUnescape(resp.Trailer.Get("Arenero-Stderr")) // for people
	return arenero.Result{
		ExitCode: code, ExitReason: arenero.ExitReason(resp.Trailer.Get("Arenero-Exit-Reason")), Stderr: stderr,
		Results: []arenero.Display{},
	}, nil
}
