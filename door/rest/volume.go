package rest

import (
	"context"

	"github.com/arenero/arenero"
)

// mountBody is a volume that a sandbox is to have.
type mountBody struct {
	Name     string `json:"name" maxLength:"63" doc:"Of the volume"`
	Path     string `json:"path" maxLength:"1024" doc:"Where it is seen: absolute, and made if it is not there"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

func mountsOf(list []mountBody) []arenero.VolumeMount {
	var out []arenero.VolumeMount
	for _, m := range list {
		out = append(out, arenero.VolumeMount(m))
	}
	return out
}

type volumesResponse struct {
	Body struct {
		Volumes []arenero.Volume `json:"volumes"`
	}
}

func (d *Door) listVolumes(ctx context.Context, _ *struct{}) (*volumesResponse, error) {
	all, err := d.Host.Volumes(ctx, askerOf(ctx).who)
	if err != nil {
		return nil, err
	}
	out := &volumesResponse{}
	out.Body.Volumes = all
	return out, nil
}

type volumeRequest struct {
	ByRetry

	Body struct {
		Name  string `json:"name" maxLength:"63" doc:"1 to 63 of a-z, 0-9 and '-'"`
		Quota int64  `json:"quota,omitempty" minimum:"0" doc:"Bytes; 1 GiB if left out"`
	}
}

type volumeResponse struct {
	Location string `header:"Location"`
	Replayed string `header:"Idempotency-Replayed"`
	Body     arenero.Volume
}

func (d *Door) makeVolume(ctx context.Context, in *volumeRequest) (*volumeResponse, error) {
	who := askerOf(ctx).who
	v, again, err := once(ctx, d, in.IdempotencyKey, "volume", in.Body, func(ctx context.Context) (arenero.Volume, error) {
		return d.Host.CreateVolume(ctx, who, in.Body.Name, in.Body.Quota)
	})
	if err != nil {
		return nil, err
	}
	return &volumeResponse{Location: "/v1/volumes/" + v.Name, Replayed: replayed(again), Body: v}, nil
}

// ByVolume is the part of a request that names a volume.
type ByVolume struct {
	Volume string `path:"volume" maxLength:"63"`
}

func (d *Door) getVolume(ctx context.Context, in *ByVolume) (*volumeResponse, error) {
	v, err := d.Host.GetVolume(ctx, askerOf(ctx).who, in.Volume)
	if err != nil {
		return nil, err
	}
	return &volumeResponse{Body: v}, nil
}

func (d *Door) removeVolume(ctx context.Context, in *ByVolume) (*nothing, error) {
	return nil, d.Host.RemoveVolume(ctx, askerOf(ctx).who, in.Volume)
}
