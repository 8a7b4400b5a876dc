package jupyter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/arenero/arenero"
)

func (s *session) socket(port int) string { return fmt.Sprintf("%s/k-%d", s.dir, port) }

// connect waits for the sockets and connects them, iopub first so that nothing is
// missed.
func (s *session) connect(ctx context.Context, cfg *Config) error {
	// Shell and stdin carry the same identity: the kernel sends a request for
	// input to the identity that asked for the cell.
	for _, c := range []struct {
		to   **zconn
		port int
		kind string
	}{{&s.iopub, 2, "SUB"}, {&s.stdin, 3, "DEALER"}, {&s.control, 4, "DEALER"}, {&s.shell, 1, "DEALER"}} {
		z, err := s.dial(ctx, cfg, c.port, c.kind)
		if err != nil {
			return err
		}
		*c.to = z
	}
	s.joined.Go(func() { s.read(s.iopub, s.fromIOPub) })
	s.joined.Go(func() { s.read(s.stdin, s.fromStdin) })
	s.joined.Go(func() { s.read(s.control, s.fromShell) })
	s.joined.Go(func() { s.read(s.shell, s.fromShell) })
	go s.watch() // joined through gone
	return nil
}

func (s *session) dial(ctx context.Context, cfg *Config, port int, kind string) (*zconn, error) {
	path := s.socket(port)
	wait := 2 * time.Millisecond
	for {
		if _, err := os.Lstat(path); err == nil {
			c, err := cfg.Dial(ctx, path)
			if err == nil {
				deadline, _ := ctx.Deadline()
				z, err := openZMTP(c, kind, s.id, deadline)
				if err != nil {
					return nil, fmt.Errorf("connect to its socket: %w", err)
				}
				return z, nil
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			wait = min(wait*3/2, 20*time.Millisecond)
		case <-s.proc.Done():
			t.Stop()
			return nil, fmt.Errorf("it ended with status %d before it was ready", s.proc.Exit().Code)
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("it was not ready in time: %w", context.Cause(ctx))
		}
	}
}

// greet asks who is there until the answer comes and iopub is heard too: a
// subscription takes effect some time after it was sent.
func (s *session) greet(ctx context.Context) error {
	for {
		m, err := s.request(ctx, s.shell, "kernel_info_request", struct{}{})
		if err != nil {
			return err
		}
		if m.kind != "kernel_info_reply" {
			return fmt.Errorf("it answered a greeting with %.40q", m.kind)
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-s.ready:
			t.Stop()
			return nil
		case <-t.C:
		case <-s.gone:
			t.Stop()
			return s.cause()
		}
	}
}

// request sends a request and waits for its answer.
func (s *session) request(ctx context.Context, z *zconn, kind string, content any) (message, error) {
	id, frames, err := s.sign.encode(kind, s.id, content)
	if err != nil {
		return message{}, arenero.Errorf(arenero.Internal, kind, s.name, "%w", err)
	}
	answer := make(chan message, 1)
	s.mu.Lock()
	s.waiting[id] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.waiting, id)
		s.mu.Unlock()
	}()
	if err := z.send(frames...); err != nil {
		return message{}, s.sendError(err)
	}
	select {
	case m := <-answer:
		return m, nil
	case <-s.gone:
		return message{}, arenero.Errorf(arenero.Conflict, "ask kernel", s.name, "the kernel is dead: %w", s.cause())
	case <-ctx.Done():
		return message{}, ctxError(ctx, "ask kernel", s.name)
	}
}

// sendError turns a failed write into the reason of the kernel's death, which is
// what it nearly always is.
func (s *session) sendError(err error) error {
	s.fail(fmt.Errorf("write to its socket: %w", err))
	select {
	case <-s.gone:
	case <-time.After(2 * time.Second):
	}
	return arenero.Errorf(arenero.Conflict, "ask kernel", s.name, "the kernel is dead: %w", s.cause())
}

// read hands the messages of a socket to to, until the socket ends.
func (s *session) read(z *zconn, to func(message)) {
	for {
		raw, err := z.recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it closed its socket")
			}
			s.fail(err)
			return
		}
		m, err := s.sign.decode(raw)
		if err != nil {
			s.fail(err)
			return
		}
		to(m)
	}
}

func (s *session) conns() []*zconn {
	var out []*zconn
	for _, z := range []*zconn{s.shell, s.control, s.stdin, s.iopub} {
		if z != nil {
			out = append(out, z)
		}
	}
	return out
}
