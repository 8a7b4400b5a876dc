package dial

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

// The first calls of a session may come together.
func TestFirstCallsTogether(t *testing.T) {
	for range 20 {
		g := talk(t, lying)
		var calls sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			calls.Go(func() { _, errs[i] = g.Stat(t.Context(), "", "x") })
		}
		calls.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
}

// When the wire is lost, calls fail at once, those that wait and those that come.
func TestLostWire(t *testing.T) {
	cut := make(chan net.Conn, 1)
	g := talk(t, func(c net.Conn) {
		cut <- c
		lying(c)
	})
	waiting := make(chan error, 1)
	go func() { waiting <- g.RestartKernel(t.Context(), "stall") }()
	if _, err := g.Stat(t.Context(), "", "x"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := (<-cut).Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("a call that waits: %v", err)
	}
	for range 3 {
		if _, err := g.Stat(t.Context(), "", "x"); arenero.CodeOf(err) != arenero.Unavailable {
			t.Errorf("a call that comes: %v", err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := g.Stat(t.Context(), "", "x"); arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("a call after the end: %v", err)
	}
	if time.Since(start) > 5*time.Second {
		t.Errorf("it took %v", time.Since(start))
	}
}
