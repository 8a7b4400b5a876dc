package rest

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

type poolsResponse struct {
	Body struct {
		Pools []arenero.Pool `json:"pools"`
	}
}

func (d *Door) listPools(ctx context.Context, _ *struct{}) (*poolsResponse, error) {
	all, err := d.Host.Pools(ctx, askerOf(ctx).who)
	if err != nil {
		return nil, err
	}
	out := &poolsResponse{}
	out.Body.Pools = all
	return out, nil
}

type setPoolRequest struct {
	Body struct {
		Image  string  `json:"image" maxLength:"256"`
		CPUs   float64 `json:"cpus,omitempty" doc:"Of one sandbox; the default if left out"`
		Memory int64   `json:"memory,omitempty" doc:"Bytes, of one sandbox; the default if left out"`
		Min    int     `json:"min" minimum:"0" doc:"Always ready"`
		Max    int     `json:"max" minimum:"0" doc:"Never more; 0 leaves it to demand again"`
	}
}

func (d *Door) setPool(ctx context.Context, in *setPoolRequest) (*poolsResponse, error) {
	b := in.Body
	if err := d.Host.SetPool(ctx, askerOf(ctx).who, arenero.Pool{Image: b.Image, CPUs: b.CPUs, Memory: b.Memory, Min: b.Min, Max: b.Max}); err != nil {
		return nil, err
	}
	return d.listPools(ctx, nil)
}

type keyBody struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	Tenant   string        `json:"tenant"`
	Scopes   []string      `json:"scopes"`
	Ceilings host.Ceilings `json:"ceilings"`
	Created  time.Time     `json:"created"`
	Expires  *time.Time    `json:"expires,omitempty"`
	Used     *time.Time    `json:"used,omitempty" doc:"When it was last used, to about a minute"`
}

func keyOf(k host.Key) keyBody {
	b := keyBody{ID: k.ID, Name: k.Name, Tenant: k.Tenant, Scopes: k.Scopes, Ceilings: k.Ceilings, Created: k.Created}
	if !k.Expires.IsZero() {
		b.Expires = &k.Expires
	}
	if !k.Used.IsZero() {
		b.Used = &k.Used
	}
	return b
}

type keysResponse struct {
	Body struct {
		Keys []keyBody `json:"keys"`
	}
}

func (d *Door) listKeys(ctx context.Context, _ *struct{}) (*keysResponse, error) {
	all, err := d.Host.Keys(ctx, askerOf(ctx).who)
	if err != nil {
		return nil, err
	}
	out := &keysResponse{}
	out.Body.Keys = make([]keyBody, len(all))
	for i, k := range all {
		out.Body.Keys[i] = keyOf(k)
	}
	return out, nil
}

type makeKeyRequest struct {
	Body struct {
		Name     string        `json:"name,omitempty" maxLength:"128"`
		Tenant   string        `json:"tenant,omitempty" maxLength:"63" doc:"Your own if left out"`
		Scopes   []string      `json:"scopes,omitempty" maxItems:"3" doc:"read, run, admin; run if left out"`
		Ceilings host.Ceilings `json:"ceilings,omitempty"`
		Expires  float64       `json:"expires_in,omitempty" doc:"Seconds; never if left out"`
	}
}

type makeKeyResponse struct {
	Body struct {
		Secret string `json:"secret" doc:"The key itself. It is kept nowhere: this is the only time it is told"`
	}
}

func (d *Door) makeKey(ctx context.Context, in *makeKeyRequest) (*makeKeyResponse, error) {
	who := askerOf(ctx).who
	b := in.Body
	k := host.Key{Name: b.Name, Tenant: b.Tenant, Scopes: b.Scopes, Ceilings: b.Ceilings}
	if k.Tenant == "" {
		k.Tenant = who.Tenant
	}
	life, err := lasting("expires_in", b.Expires)
	if err != nil {
		return nil, err
	}
	if life > 0 {
		k.Expires = time.Now().Add(life)
	}
	secret, err := d.Host.MakeKey(ctx, who, k)
	if err != nil {
		return nil, err
	}
	out := &makeKeyResponse{}
	out.Body.Secret = secret
	return out, nil
}

type revokeKeyRequest struct {
	ID string `path:"key" maxLength:"64"`
}

func (d *Door) revokeKey(ctx context.Context, in *revokeKeyRequest) (*nothing, error) {
	return nil, d.Host.RevokeKey(ctx, askerOf(ctx).who, in.ID)
}

// backup streams a copy of the records.
func (d *Door) backup(ctx context.Context, _ *struct{}) (*huma.StreamResponse, error) {
	a := askerOf(ctx)
	b, err := d.Host.Backup(ctx, a.who)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(huma.Context) {
		defer b.Close()
		download(a, b, b.Size())
	}}, nil
}
