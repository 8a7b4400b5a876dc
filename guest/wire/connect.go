package wire

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"

	"github.com/arenero/arenero"
)

// Connect opens a session as the host and returns it as a connection. It owns rw
// from now on: it is closed when the connection is, and when Connect fails. Close
// of rw must end a Read and a Write that block. Bytes of earlier sessions are
// dropped. The error is [arenero.Unavailable] when the guest does not answer
// before ctx ends, [arenero.Internal] when what it sends makes no sense.
func Connect(ctx context.Context, rw io.ReadWriteCloser) (net.Conn, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	stop := context.AfterFunc(ctx, func() { _ = rw.Close() })
	sent := make(chan error, 1)
	go func() { // joined below; the guest may be unable to read until we have read
		b := make([]byte, padLen+helloLen)
		putHello(b[padLen:], hostMagic, nonce)
		_, err := rw.Write(b)
		sent <- err
	}()
	r := &reader{r: rw}
	_, err := r.skipTo(guestMagic, maxStale, &nonce)
	if err != nil {
		_ = rw.Close()
	}
	werr := <-sent
	if err == nil {
		err = werr
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = rw.Close()
		return nil, connectError(ctx, err)
	}
	l := newLink(rw, rw)
	c := newConn(l, nonce, true)
	l.replace(c)
	go func() { // joined by Close
		defer close(c.joined)
		err := r.frames(c)
		if errors.Is(err, io.EOF) {
			err = errCut
		}
		c.fail(err)
	}()
	return c, nil
}

func connectError(ctx context.Context, err error) error {
	if errors.Is(err, errProtocol) {
		return arenero.Errorf(arenero.Internal, "connect wire", "", "%w", err)
	}
	if c := ctx.Err(); c != nil {
		err = c
	}
	code := arenero.Unavailable
	if errors.Is(err, context.Canceled) {
		code = arenero.Canceled
	}
	return arenero.Errorf(code, "connect wire", "", "guest does not answer: %w", err).
		WithHint("the guest agent may be starting still, or may have been stopped")
}
