// Package wire is what host and guest have between them: the contract with its
// generated code, and the link that carries its connections over one byte stream.
//
//nolint:godoclint // the generated code speaks of the contract alone
package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arenero/arenero"
)

// Conn is one session of a link: a [net.Conn] with working deadlines. Read and
// Write may be called from one goroutine each, the rest from any.
type Conn struct {
	link *link
	id   uint32
	host bool // it owns the raw stream

	rdead, wdead *deadline
	readable     chan struct{} // 1 token: look again
	writable     chan struct{} // 1 token: look again
	done         chan struct{} // closed by fail
	joined       chan struct{} // host: closed when its reader goroutine is gone

	mu     sync.Mutex
	in     queue
	eaten  int   // consumed by Read since credit was last given
	credit int   // what may still be sent
	eof    bool  // the peer sent its end
	err    error // why it failed; set before done is closed
	wmu    sync.Mutex
}

func newConn(l *link, nonce [16]byte, host bool) *Conn {
	return &Conn{
		link: l, id: sessionOf(nonce), host: host, credit: window,
		rdead: newDeadline(), wdead: newDeadline(),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		done: make(chan struct{}), joined: make(chan struct{}),
	}
}

// deliver takes a frame from the reader goroutine. It never blocks. False means
// that the peer broke the protocol.
func (c *Conn) deliver(kind byte, payload []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind {
	case kindData:
		if c.eof || c.in.size+c.eaten+len(payload) > window {
			return false
		}
		if c.err == nil {
			c.in.push(payload)
		}
		wake(c.readable)
	case kindCredit:
		n := binary.LittleEndian.Uint32(payload)
		if n > window || c.credit+int(n) > window {
			return false
		}
		c.credit += int(n)
		wake(c.writable)
	case kindEnd:
		c.eof = true
		wake(c.readable)
	}
	return true
}

// fail ends the session. What was received stays readable only for an orderly end.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		c.in.drop()
		close(c.done)
	}
	c.mu.Unlock()
	if first {
		c.link.retime(c, longAgo)
	}
}

func (c *Conn) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *Conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, net.ErrClosed) {
		return c.err
	}
	return arenero.Errorf(arenero.Unavailable, "use wire", "", "%w", c.err)
}

// Read reads what the peer sent; io.EOF after its orderly end.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if c.rdead.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		c.mu.Lock()
		n, give := c.in.pop(p), 0
		c.eaten += n
		if c.eaten >= window/2 {
			give, c.eaten = c.eaten, 0
		}
		err, eof, more := c.err, c.eof, c.in.size > 0
		c.mu.Unlock()
		switch {
		case n > 0:
			if more {
				wake(c.readable)
			}
			if give > 0 {
				c.give(give)
			}
			return n, nil
		case err != nil:
			return 0, c.reason()
		case eof:
			wake(c.readable) // for another that waits
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		select {
		case <-c.readable:
		case <-c.rdead.wait():
		case <-c.done:
		}
	}
}

// give returns credit to the peer. An error shows in the next Read.
func (c *Conn) give(n int) {
	var b [headerLen + 4]byte
	var p [4]byte
	binary.LittleEndian.PutUint32(p[:], uint32(n))
	if sent, err := c.link.send(c, appendFrame(b[:0], kindCredit, c.id, p[:])); err != nil {
		if !sent && errors.Is(err, os.ErrDeadlineExceeded) {
			c.mu.Lock()
			c.eaten += n // the next Read tries again
			c.mu.Unlock()
			return
		}
		if !sent {
			c.fail(err)
		}
	}
}

// Write sends p. It blocks while the peer's reader is a window behind. A peer
// that ended its side may still read.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.wdead.passed() {
		return 0, os.ErrDeadlineExceeded
	}
	buf, _ := scratch.Get().(*[]byte)
	defer scratch.Put(buf)
	done := 0
	for done < len(p) || done == 0 && len(p) == 0 {
		n, err := c.reserve(min(len(p)-done, maxPayload))
		if err != nil || n == 0 {
			return done, err
		}
		frame := appendFrame((*buf)[:0], kindData, c.id, p[done:done+n])
		sent, err := c.link.send(c, frame)
		if sent {
			done += n
		} else {
			c.mu.Lock()
			c.credit += n
			c.mu.Unlock()
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.ended():
			return done, err
		default:
			c.fail(err)
			return done, c.reason()
		}
	}
	return done, nil
}

// reserve takes up to n bytes of credit, waiting for the first.
func (c *Conn) reserve(n int) (int, error) {
	for {
		if c.wdead.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		c.mu.Lock()
		got, err := min(n, c.credit), c.err
		c.credit -= got
		c.mu.Unlock()
		switch {
		case err != nil:
			return 0, c.reason()
		case got > 0 || n == 0:
			return got, nil
		}
		select {
		case <-c.writable:
		case <-c.wdead.wait():
		case <-c.done:
		}
	}
}

// Close tells the peer, if that can be done within a tenth of a second, and ends
// the session. The host's end also closes the raw stream and waits for its reader.
func (c *Conn) Close() error {
	if !c.ended() {
		c.wdead.set(time.Now().Add(closeWait))
		c.link.retime(c, c.wdead.time())
		var b [headerLen]byte
		stop := func() bool { return true }
		if c.host {
			if w, ok := c.link.w.(io.Closer); ok {
				stop = time.AfterFunc(2*closeWait, func() { _ = w.Close() }).Stop
			}
		}
		_, _ = c.link.send(c, appendFrame(b[:0], kindEnd, c.id, nil))
		stop()
	}
	c.fail(net.ErrClosed)
	if !c.host {
		return nil
	}
	if w, ok := c.link.w.(io.Closer); ok {
		_ = w.Close() // whatever it says, the session is over
	}
	<-c.joined
	return nil
}

const closeWait = 100 * time.Millisecond

// LocalAddr names the kind of link.
func (c *Conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr names the kind of link.
func (c *Conn) RemoteAddr() net.Addr { return addr{} }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds Read, also one that blocks now.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.rdead.set(t)
	return nil
}

// SetWriteDeadline bounds Write, also one that blocks now.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.wdead.set(t)
	if !c.ended() {
		c.link.retime(c, t)
	}
	return nil
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// A queue is a bounded run of bytes in pooled pieces; its owner keeps the bound.
type queue struct {
	parts [][]byte  // the first from off on
	bufs  []*[]byte // what parts[i] lives in
	off   int
	size  int
}

func (q *queue) push(p []byte) {
	q.size += len(p)
	for len(p) > 0 {
		last := len(q.parts) - 1
		if last < 0 || len(q.parts[last]) == cap(q.parts[last]) {
			b, _ := scratch.Get().(*[]byte)
			q.bufs = append(q.bufs, b)
			q.parts = append(q.parts, (*b)[:0])
			last++
		}
		part := q.parts[last]
		n := min(cap(part)-len(part), len(p))
		q.parts[last] = append(part, p[:n]...)
		p = p[n:]
	}
}

func (q *queue) pop(p []byte) int {
	done := 0
	for done < len(p) && q.size > 0 {
		n := copy(p[done:], q.parts[0][q.off:])
		done += n
		q.off += n
		q.size -= n
		if q.off == len(q.parts[0]) {
			scratch.Put(q.bufs[0])
			q.parts, q.bufs, q.off = q.parts[1:], q.bufs[1:], 0
		}
	}
	if q.size == 0 {
		q.parts, q.bufs = nil, nil
	}
	return done
}

func (q *queue) drop() {
	for _, b := range q.bufs {
		scratch.Put(b)
	}
	*q = queue{}
}

// A deadline is a moment that can be moved while others wait for it.
type deadline struct {
	mu    sync.Mutex
	at    time.Time
	timer *time.Timer
	ch    chan struct{} // closed when the moment has passed
}

func newDeadline() *deadline { return &deadline{ch: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // the timer fired: wait until it has closed ch
	}
	d.timer, d.at = nil, t
	closed := false
	select {
	case <-d.ch:
		closed = true
	default:
	}
	switch left := time.Until(t); {
	case t.IsZero():
		if closed {
			d.ch = make(chan struct{})
		}
	case left <= 0:
		if !closed {
			close(d.ch)
		}
	default:
		if closed {
			d.ch = make(chan struct{})
		}
		ch := d.ch
		d.timer = time.AfterFunc(left, func() { close(ch) })
	}
}

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) time() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

func (d *deadline) passed() bool {
	select {
	case <-d.wait():
		return true
	default:
		return false
	}
}
