package wire

import (
	"errors"
	"io"
	"net"
	"sync"
)

// A Listener is the guest's end of a link: it accepts one session after another.
// It is a [net.Listener].
type Listener struct {
	link   *link
	accept chan *Conn
	done   chan struct{}
	once   sync.Once
	err    error // why it ended; set before done is closed
	joined chan struct{}
}

// Listen starts the guest's end on a stream. r and w may be the same. Writes to w
// honour deadlines when w has SetWriteDeadline.
func Listen(r io.Reader, w io.Writer) *Listener {
	l := &Listener{
		link: newLink(r, w), accept: make(chan *Conn, 1),
		done: make(chan struct{}), joined: make(chan struct{}),
	}
	go func() { // ends when r does; Close waits for it when it can close r
		defer close(l.joined)
		l.end(l.run())
	}()
	return l
}

func (l *Listener) run() error {
	r := &reader{r: l.link.r}
	for {
		nonce, err := r.skipTo(hostMagic, -1, nil)
		if err != nil {
			return err
		}
		c := newConn(l.link, nonce, false)
		l.link.replace(c)
		var hello [helloLen]byte
		putHello(hello[:], guestMagic, nonce)
		if _, err := l.link.send(nil, hello[:]); err != nil {
			return err
		}
		select { // a session nobody has accepted yet is stale
		case <-l.accept:
		default:
		}
		l.accept <- c
		err = r.frames(c)
		if !errors.Is(err, errProtocol) {
			c.fail(err)
			return err
		}
		c.fail(errPreempted)
	}
}

// Accept returns the next session. The one before it has failed by then. The
// error after Close is [net.ErrClosed]; io.EOF means that the stream ended.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.done:
		return nil, l.err
	}
}

func (l *Listener) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
		l.link.replace(nil)
	})
}

// Close ends the listener and its session. The stream is closed if it can be.
func (l *Listener) Close() error {
	l.end(net.ErrClosed)
	c, ok := l.link.r.(io.Closer)
	if !ok {
		return nil
	}
	err := c.Close()
	if w, ok := l.link.w.(io.Closer); ok && any(l.link.w) != any(l.link.r) {
		err = errors.Join(err, w.Close())
	}
	<-l.joined
	return err
}

// Addr names the kind of link.
func (l *Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "wire" }
func (addr) String() string  { return "wire" }
