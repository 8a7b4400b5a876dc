package client

import (
	"context"
	"encoding/json"
	"io"

	"github.com/arenero/arenero"
)

// ReadTree opens a folder with all that is in it, as a tar archive; the caller
// closes it. What is in it was written in the sandbox: unpack it with care.
func (s *Sandbox) ReadTree(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := s.c.do(ctx, "read folder", "GET", s.file("/tree", path), "application/octet-stream", "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteTree unpacks a tar archive below a folder.
func (s *Sandbox) WriteTree(ctx context.Context, path string, r io.Reader) (arenero.TreeInfo, error) {
	const op = "write folder"
	var out arenero.TreeInfo
	resp, err := s.c.do(ctx, op, "PUT", s.file("/tree", path), "application/json", "application/x-tar", r)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&out); err != nil {
		return out, broken(ctx, op, err)
	}
	return out, nil
}
