package client

import (
	"context"
	"iter"
	"time"

	"github.com/arenero/arenero"
)

// A Kernel is an interpreter of a sandbox, in which variables stay from cell to
// cell. The one called "python" is there from the start, or is started by the
// first cell.
type Kernel struct {
	Name string
	sb   *Sandbox
}

// Kernel names a kernel. It makes no request.
func (s *Sandbox) Kernel(name string) *Kernel { return &Kernel{Name: name, sb: s} }

// Kernels lists the kernels of the sandbox.
func (s *Sandbox) Kernels(ctx context.Context) ([]arenero.KernelInfo, error) {
	var out struct {
		Kernels []arenero.KernelInfo `json:"kernels"`
	}
	err := s.c.call(ctx, "list kernels", "GET", s.path("/kernels"), nil, &out)
	return out.Kernels, err
}

// StartKernel starts a kernel of a language under a name of your own.
// [arenero.Conflict] for a name in use, [arenero.NotFound] for a language that the
// image lacks.
func (s *Sandbox) StartKernel(ctx context.Context, name, language string) (*Kernel, error) {
	body := struct {
		Name     string `json:"name"`
		Language string `json:"language,omitempty"`
	}{name, language}
	if err := s.c.call(ctx, "start kernel", "POST", s.path("/kernels"), body, nil); err != nil {
		return nil, err
	}
	return s.Kernel(name), nil
}

// A Cell is code to run in a kernel.
type Cell struct {
	Code     string            `json:"code"`
	Language string            `json:"language,omitempty"` // of the kernel, if it has to be started; "" is by its name
	Env      map[string]string `json:"env,omitempty"`      // while it runs
	Stdin    string            `json:"stdin,omitempty"`
	Timeout  time.Duration     `json:"-"` // 0 is the sandbox's default

	IdempotencyKey string `json:"-"` // with it, a repeated call gets the answer of the first; not for Stream
}

func (c Cell) body() any {
	return struct {
		Cell

		Timeout float64 `json:"timeout,omitempty"`
	}{c, c.Timeout.Seconds()}
}

func (k *Kernel) path(verb string) string { return k.sb.path("/kernels/" + escape(k.Name) + verb) }

// Execute runs a cell to its end.
func (k *Kernel) Execute(ctx context.Context, c Cell) (arenero.Result, error) {
	var res arenero.Result
	err := k.sb.c.callOnce(ctx, "run cell", "POST", k.path("/execute"), c.IdempotencyKey, c.body(), &res)
	return res, err
}

// Stream runs a cell and goes through what happens as it does. The last event
// has End set, or the error is set. Breaking off interrupts the cell.
func (k *Kernel) Stream(ctx context.Context, c Cell) iter.Seq2[arenero.KernelEvent, error] {
	return func(yield func(arenero.KernelEvent, error) bool) {
		for e, err := range k.sb.c.events(ctx, "run cell", k.path("/execute"), c.body()) {
			var out arenero.KernelEvent
			if err == nil {
				out, err = kernelEvent(e)
			}
			if err == nil && out == (arenero.KernelEvent{}) {
				continue // an event of a newer server
			}
			if !yield(out, err) || err != nil || out.End != nil {
				return
			}
		}
	}
}

// Interrupt stops the running cell; variables stay.
func (k *Kernel) Interrupt(ctx context.Context) error {
	return k.sb.c.call(ctx, "interrupt kernel", "POST", k.path("/interrupt"), nil, nil)
}

// Restart gives the kernel a fresh interpreter.
func (k *Kernel) Restart(ctx context.Context) error {
	return k.sb.c.call(ctx, "restart kernel", "POST", k.path("/restart"), nil, nil)
}

// Stop ends the kernel and all it started.
func (k *Kernel) Stop(ctx context.Context) error {
	return k.sb.c.call(ctx, "stop kernel", "DELETE", k.path(""), nil, nil)
}

type place struct {
	Code   string `json:"code"`
	Cursor int    `json:"cursor"`
}

// Complete says how code could go on at a cursor, which counts characters.
func (k *Kernel) Complete(ctx context.Context, code string, cursor int) (arenero.Completion, error) {
	var out arenero.Completion
	err := k.sb.c.call(ctx, "complete code", "POST", k.path("/complete"), place{code, cursor}, &out)
	return out, err
}

// Inspect says what is known of the name at a cursor: one text in several MIME
// types, empty when nothing is.
func (k *Kernel) Inspect(ctx context.Context, code string, cursor int) (map[string]string, error) {
	var out struct {
		MIME map[string]string `json:"mime"`
	}
	err := k.sb.c.call(ctx, "inspect code", "POST", k.path("/inspect"), place{code, cursor}, &out)
	return out.MIME, err
}
