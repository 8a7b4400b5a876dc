package client

import (
	"context"

	"github.com/arenero/arenero"
)

// CreateVolume makes a volume of so many bytes; 0 is the server's default.
// [arenero.Conflict] when there is one of the name.
func (c *Client) CreateVolume(ctx context.Context, name string, quota int64) (arenero.Volume, error) {
	body := struct {
		Name  string `json:"name"`
		Quota int64  `json:"quota,omitempty"`
	}{name, quota}
	var out arenero.Volume
	err := c.call(ctx, "make volume", "POST", "/v1/volumes", body, &out)
	return out, err
}

// Volumes lists the volumes there are.
func (c *Client) Volumes(ctx context.Context) ([]arenero.Volume, error) {
	var out struct {
		Volumes []arenero.Volume `json:"volumes"`
	}
	err := c.call(ctx, "list volumes", "GET", "/v1/volumes", nil, &out)
	return out.Volumes, err
}

// Volume finds a volume by its name.
func (c *Client) Volume(ctx context.Context, name string) (arenero.Volume, error) {
	var out arenero.Volume
	err := c.call(ctx, "get volume", "GET", "/v1/volumes/"+escape(name), nil, &out)
	return out, err
}

// RemoveVolume removes a volume with all that is in it. [arenero.Conflict] while a
// sandbox has it.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return c.call(ctx, "remove volume", "DELETE", "/v1/volumes/"+escape(name), nil, nil)
}
