package rest

import (
	"context"
	"slices"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// ByID is the part of a request that names a sandbox. It is exported, as all that
// is embedded in requests, because huma does not look into others.
type ByID struct {
	ID string `path:"id" maxLength:"64"`
}

type createRequest struct {
	Body *createBody // may be left out: a sandbox of the default image
}

type createBody struct {
	Image    string            `json:"image,omitempty" maxLength:"256" doc:"python if left out"`
	Engine   string            `json:"engine,omitempty" maxLength:"64" doc:"How to isolate; the server's default if left out"`
	Limits   limitsBody        `json:"limits,omitempty"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment of every process and kernel"`
	Labels   map[string]string `json:"labels,omitempty" doc:"Your own"`
	Hostname string            `json:"hostname,omitempty" doc:"The id if left out"`
	Lifetime float64           `json:"lifetime,omitempty" doc:"Seconds until it is ended; an hour if left out"`
}

type sandboxResponse struct {
	Location string `header:"Location"`
	Body     arenero.Sandbox
}

func (d *Door) createSandbox(ctx context.Context, in *createRequest) (*sandboxResponse, error) {
	var ask createBody
	if in.Body != nil {
		ask = *in.Body
	}
	limits, err := ask.Limits.limits()
	if err != nil {
		return nil, err
	}
	lifetime, err := seconds("lifetime", ask.Lifetime)
	if err != nil {
		return nil, err
	}
	sb, err := d.Host.Create(ctx, askerOf(ctx).who, arenero.Spec{
		Image: ask.Image, Engine: ask.Engine, Limits: limits, Env: ask.Env,
		Labels: ask.Labels, Hostname: ask.Hostname, Lifetime: lifetime,
	})
	if err != nil {
		return nil, err
	}
	return &sandboxResponse{Location: "/v1/sandboxes/" + sb.ID, Body: sb}, nil
}

type listRequest struct {
	State []string `query:"state" doc:"Only these states; those that have not ended if left out"`
	All   bool     `query:"all" doc:"Those that ended within the last day too"`
	Image string   `query:"image" maxLength:"256"`
	After string   `query:"after" maxLength:"64" doc:"Id of the last one of the page before"`
	Limit int      `query:"limit" default:"100" minimum:"1" maximum:"1000"`
}

type listResponse struct {
	Body struct {
		Sandboxes []arenero.Sandbox `json:"sandboxes"`
		Next      string            `json:"next,omitempty" doc:"Give it as after to get the next page"`
	}
}

func (d *Door) listSandboxes(ctx context.Context, in *listRequest) (*listResponse, error) {
	f := host.Filter{All: in.All, Image: in.Image, After: in.After, Limit: in.Limit}
	for _, s := range in.State {
		if !slices.Contains(arenero.States(), arenero.State(s)) {
			return nil, arenero.Errorf(arenero.Invalid, "list sandboxes", "", "no state %q", readable(s, 32))
		}
		f.States = append(f.States, arenero.State(s))
	}
	all, err := d.Host.List(ctx, askerOf(ctx).who, f)
	if err != nil {
		return nil, err
	}
	out := &listResponse{}
	out.Body.Sandboxes = all
	if len(all) == in.Limit {
		out.Body.Next = all[len(all)-1].ID
	}
	return out, nil
}

func (d *Door) getSandbox(ctx context.Context, in *ByID) (*sandboxResponse, error) {
	sb, err := d.Host.Get(ctx, askerOf(ctx).who, in.ID)
	if err != nil {
		return nil, err
	}
	return &sandboxResponse{Body: sb}, nil
}

type nothing struct{}

func (d *Door) killSandbox(ctx context.Context, in *ByID) (*nothing, error) {
	return nil, d.Host.Kill(ctx, askerOf(ctx).who, in.ID)
}

type imagesResponse struct {
	Body struct {
		Images []arenero.Image `json:"images"`
	}
}

func (d *Door) listImages(ctx context.Context, _ *struct{}) (*imagesResponse, error) {
	all, err := d.Host.ListImages(ctx, askerOf(ctx).who)
	if err != nil {
		return nil, err
	}
	out := &imagesResponse{}
	out.Body.Images = all
	return out, nil
}

type healthResponse struct {
	Body struct {
		Status  string `json:"status" example:"ok"`
		Version string `json:"version"`
	}
}

func (d *Door) health(context.Context, *struct{}) (*healthResponse, error) {
	out := &healthResponse{}
	out.Body.Status, out.Body.Version = "ok", d.Version
	return out, nil
}
