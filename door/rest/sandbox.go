package rest

import (
	"context"
	"slices"
	"strings"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// ByID is the part of a request that names a sandbox. It is exported, as all that
// is embedded in requests, because huma does not look into others.
type ByID struct {
	ID string `path:"id" maxLength:"64"`
}

type createRequest struct {
	ByRetry

	Body *createBody // may be left out: a sandbox of the default image
}

type createBody struct {
	Image    string            `json:"image,omitempty" maxLength:"256" doc:"python if left out"`
	Engine   string            `json:"engine,omitempty" maxLength:"64" doc:"How to isolate; the server's default if left out"`
	Limits   limitsBody        `json:"limits,omitempty"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment of every process and kernel"`
	Labels   map[string]string `json:"labels,omitempty" doc:"Your own"`
	Hostname string            `json:"hostname,omitempty" doc:"The id if left out"`
	Lifetime float64           `json:"lifetime,omitempty" doc:"Seconds until its time is over; an hour if left out"`

	Snapshot  string      `json:"snapshot,omitempty" maxLength:"64" doc:"Start from this snapshot instead of an image"`
	Idle      float64     `json:"idle,omitempty" doc:"Seconds it may be unused and at rest before it sleeps; below 0 is for ever"`
	OnTimeout string      `json:"on_timeout,omitempty" enum:"kill,pause" doc:"What becomes of it when its time is over; kill if left out"`
	Volumes   []mountBody `json:"volumes,omitempty" maxItems:"8" doc:"Volumes it is to have"`

	Wait float64 `json:"wait,omitempty" doc:"Seconds it may queue for a place on this machine; none if left out"`
}

type sandboxResponse struct {
	Location string `header:"Location"`
	Replayed string `header:"Idempotency-Replayed"`
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
	spec := arenero.Spec{
		Image: ask.Image, Snapshot: ask.Snapshot, Engine: ask.Engine, Limits: limits, Env: ask.Env,
		Labels: ask.Labels, Hostname: ask.Hostname, OnTimeout: arenero.OnTimeout(ask.OnTimeout), Volumes: mountsOf(ask.Volumes),
	}
	if spec.Lifetime, err = lasting("lifetime", ask.Lifetime); err != nil {
		return nil, err
	}
	if spec.Idle, err = idling(ask.Idle); err != nil {
		return nil, err
	}
	if spec.Wait, err = lasting("wait", ask.Wait); err != nil {
		return nil, err
	}
	who := askerOf(ctx).who
	sb, again, err := once(ctx, d, in.IdempotencyKey, "create", ask, func(ctx context.Context) (arenero.Sandbox, error) {
		return d.Host.Create(ctx, who, spec)
	})
	if err != nil {
		return nil, err
	}
	return &sandboxResponse{Location: "/v1/sandboxes/" + sb.ID, Replayed: replayed(again), Body: sb}, nil
}

type listRequest struct {
	State []string `query:"state" doc:"Only these states; those that have not ended if left out"`
	All   bool     `query:"all" doc:"Those that ended within the last day too"`
	Image string   `query:"image" maxLength:"256"`
	Label []string `query:"label,explode" maxItems:"16" doc:"NAME=VALUE; only those that have all of them"`
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
	for _, l := range in.Label {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, arenero.Errorf(arenero.Invalid, "list sandboxes", "", "label %q is not of the form NAME=VALUE", readable(l, 64))
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[k] = v
	}
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
