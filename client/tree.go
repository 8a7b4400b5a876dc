package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/arenero/arenero"
)

// ReadTree opens a folder with all that is in it, as a tar archive; the caller
// closes it. What is in it was written in the sandbox: unpack it with care.
func (s *Sandbox) ReadTree(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := s.c.get(ctx, "read folder", s.file("/tree", path), "application/x-tar") //nolint:bodyclose // the caller does
	if err != nil {
		return nil, err
	}
	return &lined{resp.Body, ctx, "read folder"}, nil
}

// WriteTree unpacks a tar archive below a folder.
func (s *Sandbox) WriteTree(ctx context.Context, path string, r io.Reader) (arenero.TreeInfo, error) {
	const op = "write folder"
	var out arenero.TreeInfo
	resp, err := s.c.send(ctx, request{op: op, method: "PUT", path: s.file("/tree", path), gives: "application/x-tar", body: r})
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&out); err != nil {
		return out, broken(ctx, op, err)
	}
	return out, nil
}

// lined gives the errors of a body our form.
type lined struct {
	io.ReadCloser

	ctx context.Context
	op  string
}

func (l *lined) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = broken(l.ctx, l.op, err)
	}
	return n, err
}
