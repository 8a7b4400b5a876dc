package rest

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// ByKernel is the part of a request that names a kernel.
type ByKernel struct {
	ByID

	Name string `path:"name" maxLength:"64" pattern:"^[a-zA-Z0-9._-]+$" doc:"The default one is called python"`
}

type kernelsResponse struct {
	Body struct {
		Kernels []arenero.KernelInfo `json:"kernels"`
	}
}

func (d *Door) guest(ctx context.Context, id string, scope host.Scope) (arenero.Guest, error) {
	return d.Host.Guest(ctx, askerOf(ctx).who, id, scope)
}

func (d *Door) listKernels(ctx context.Context, in *ByID) (*kernelsResponse, error) {
	g, err := d.guest(ctx, in.ID, host.ScopeRead)
	if err != nil {
		return nil, err
	}
	all, err := g.ListKernels(ctx)
	if err != nil {
		return nil, err
	}
	out := &kernelsResponse{}
	out.Body.Kernels = append([]arenero.KernelInfo{}, all...)
	return out, nil
}

type startKernelRequest struct {
	ByID

	Body struct {
		Name     string            `json:"name" maxLength:"64" pattern:"^[a-zA-Z0-9._-]+$" doc:"Your name for it"`
		Language string            `json:"language,omitempty" maxLength:"64" doc:"A language or a kernelspec of the image; python if left out"`
		Dir      string            `json:"dir,omitempty" doc:"Where it starts; the work directory if left out"`
		Env      map[string]string `json:"env,omitempty"`
	}
}

type kernelResponse struct {
	Body arenero.KernelInfo
}

func (d *Door) startKernel(ctx context.Context, in *startKernelRequest) (*kernelResponse, error) {
	if in.Body.Dir != "" {
		if err := checkPath(in.Body.Dir); err != nil {
			return nil, err
		}
	}
	if err := host.CheckEnv(in.Body.Env); err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	k, err := g.StartKernel(ctx, arenero.KernelRequest{
		Name: in.Body.Name, Language: host.Language(in.Body.Language), Dir: in.Body.Dir, Env: in.Body.Env,
	})
	if err != nil {
		return nil, err
	}
	return &kernelResponse{Body: k}, nil
}

func (d *Door) stopKernel(ctx context.Context, in *ByKernel) (*nothing, error) {
	return d.onKernel(ctx, in, arenero.Guest.StopKernel)
}

func (d *Door) interruptKernel(ctx context.Context, in *ByKernel) (*nothing, error) {
	return d.onKernel(ctx, in, arenero.Guest.InterruptKernel)
}

func (d *Door) restartKernel(ctx context.Context, in *ByKernel) (*nothing, error) {
	return d.onKernel(ctx, in, arenero.Guest.RestartKernel)
}

func (d *Door) onKernel(ctx context.Context, in *ByKernel, f func(arenero.Guest, context.Context, string) error) (*nothing, error) {
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	return nil, f(g, ctx, in.Name)
}

type cellRequest struct {
	ByKernel
	ByRetry

	Accept string `header:"Accept"`
	Body   struct {
		Code     string            `json:"code" doc:"What to run" example:"x = 41\nx + 1"`
		Timeout  float64           `json:"timeout,omitempty" doc:"Seconds it may take; the sandbox's default if left out"`
		Language string            `json:"language,omitempty" maxLength:"64" doc:"Of the kernel, if it has to be started; the kernel's name if left out"`
		Env      map[string]string `json:"env,omitempty" doc:"Environment variables while it runs"`
		Stdin    string            `json:"stdin,omitempty" doc:"What it reads from standard input; with it the code runs as a script"`
		Silent   bool              `json:"silent,omitempty" doc:"No history, no count"`
	}
}

// runCell runs a cell; a kernel named like its language is started if it is not
// there.
func (d *Door) runCell(ctx context.Context, in *cellRequest) (*huma.StreamResponse, error) {
	if err := checkCode(in.Body.Code); err != nil {
		return nil, err
	}
	timeout, err := seconds("timeout", in.Body.Timeout)
	if err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	language := in.Body.Language
	if language == "" {
		language = in.Name
	}
	if err := d.Host.EnsureKernel(ctx, g, in.Name, host.Language(language)); err != nil {
		return nil, err
	}
	cell := arenero.Execute{Kernel: in.Name, Code: in.Body.Code, Timeout: timeout, Env: in.Body.Env, Silent: in.Body.Silent}
	if in.Body.Stdin != "" {
		cell.Script = &arenero.Script{File: "script", Stdin: []byte(in.Body.Stdin)}
	}
	keep, err := d.keep(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	streamed := accepts(in.Accept, "text/event-stream")
	if in.IdempotencyKey != "" {
		if streamed {
			return nil, noStreamOnce()
		}
		return d.resultOnce(ctx, in.IdempotencyKey, "execute "+in.ID+" "+in.Name, in.Body, func(ctx context.Context) (arenero.Result, error) {
			return runCell(ctx, g, cell, keep)
		})
	}
	if !streamed {
		r, err := runCell(ctx, g, cell, keep)
		if err != nil {
			return nil, err
		}
		return answer(r), nil
	}
	x, err := g.Execute(ctx, cell)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer x.Close()
		s := openEvents(askerOf(ctx))
		defer s.close()
		s.cell(x)
	}}, nil
}

// runCell runs a cell to its end.
func runCell(ctx context.Context, g arenero.Guest, cell arenero.Execute, keep int64) (arenero.Result, error) {
	x, err := g.Execute(ctx, cell)
	if err != nil {
		return arenero.Result{}, err
	}
	defer x.Close()
	c := host.NewCollector(keep)
	err = host.CollectExecution(x, c, nil)
	return c.Result(), err
}

type codeRequest struct {
	ByKernel

	Body struct {
		Code   string `json:"code"`
		Cursor int    `json:"cursor" minimum:"0" doc:"Where in the code, in characters"`
	}
}

type completeResponse struct{ Body arenero.Completion }

func (d *Door) complete(ctx context.Context, in *codeRequest) (*completeResponse, error) {
	if err := checkCode(in.Body.Code); err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	c, err := g.Complete(ctx, in.Name, in.Body.Code, in.Body.Cursor)
	if err != nil {
		return nil, err
	}
	return &completeResponse{Body: c}, nil
}

type inspectResponse struct {
	Body struct {
		MIME map[string]string `json:"mime" doc:"The same text in several types; empty when nothing is known"`
	}
}

func (d *Door) inspect(ctx context.Context, in *codeRequest) (*inspectResponse, error) {
	if err := checkCode(in.Body.Code); err != nil {
		return nil, err
	}
	g, err := d.guest(ctx, in.ID, host.ScopeRun)
	if err != nil {
		return nil, err
	}
	out := &inspectResponse{}
	if out.Body.MIME, err = g.Inspect(ctx, in.Name, in.Body.Code, in.Body.Cursor); err != nil {
		return nil, err
	}
	if out.Body.MIME == nil {
		out.Body.MIME = map[string]string{}
	}
	return out, nil
}

// keep is how many bytes of each stream a result of this sandbox holds.
func (d *Door) keep(ctx context.Context, id string) (int64, error) {
	sb, err := d.Host.Get(ctx, askerOf(ctx).who, id)
	return sb.Limits.Output, err
}

// answer writes a result as JSON, for handlers that may also stream.
func answer(r arenero.Result) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", "application/json")
		_ = strictJSON.Marshal(ctx.BodyWriter(), r) // the client may be gone
	}}
}
