package host_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// A folder goes in and comes out as an archive, and while one is read the sandbox
// is in use, however slowly.
func TestTree(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{Idle: time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	sb := create(t, h, arenero.Spec{})
	g := guestOf(t, h, sb.ID)
	const dir = "tree" // in the work folder

	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o600, Size: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := g.WriteTree(ctx, "", dir, &b); err != nil || info != (arenero.TreeInfo{Files: 1, Bytes: 2}) {
		t.Fatal(info, err)
	}
	if _, err := g.ReadTree(ctx, "", dir+"/none"); arenero.CodeOf(err) != arenero.NotFound {
		t.Error(err)
	}
	r, err := g.ReadTree(ctx, "", dir)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond)
	if now, err := h.Get(ctx, host.Local(), sb.ID); err != nil || now.State != arenero.Running {
		t.Errorf("while it is read: %s, %v", now.State, err)
	}
	var names []string
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, hdr.Name)
	}
	if len(names) != 2 || names[0] != "d/" || names[1] != "d/f" {
		t.Errorf("%q", names)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "its end when nobody uses it", func() bool {
		now, err := h.Get(ctx, host.Local(), sb.ID)
		return err == nil && now.State.Ended()
	})
}
