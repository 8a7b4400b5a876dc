package wire

import (
	"bytes"
	"io"
)

// reader is a window on the raw stream. It is small while the wire is idle.
type reader struct {
	r     io.Reader
	buf   []byte
	lo    int // buf[lo:hi] is read and not yet used
	hi    int
	quiet int // small reads in a row
}

const idleBuffer = 4 << 10

func (r *reader) data() []byte { return r.buf[r.lo:r.hi] }

// need blocks until n bytes are at hand.
func (r *reader) need(n int) error {
	for r.hi-r.lo < n {
		r.room(n)
		m, err := r.r.Read(r.buf[r.hi:])
		if m < 0 || m > len(r.buf)-r.hi {
			return errCut
		}
		full := m == len(r.buf)-r.hi
		r.hi += m
		switch {
		case full && len(r.buf) < 2*maxPayload:
			r.move(min(4*len(r.buf), 2*maxPayload))
			r.quiet = 0
		case m < idleBuffer/4:
			r.quiet++
		default:
			r.quiet = 0
		}
		if err != nil && r.hi-r.lo < n {
			return err
		}
	}
	return nil
}

// room makes place for n bytes from lo on, and lets go of a large buffer that
// has not been needed for a while.
func (r *reader) room(n int) {
	if r.lo == r.hi {
		r.lo, r.hi = 0, 0
		if r.quiet > 64 && len(r.buf) > idleBuffer && n <= idleBuffer {
			r.buf, r.quiet = make([]byte, idleBuffer), 0
		}
	}
	if size := max(n, idleBuffer); len(r.buf) < size {
		r.move(size)
	} else if r.lo+n > len(r.buf) || r.hi == len(r.buf) {
		r.move(len(r.buf))
	}
}

func (r *reader) move(size int) {
	b := r.buf
	if size != len(b) {
		b = make([]byte, size)
	}
	r.hi = copy(b, r.buf[r.lo:r.hi])
	r.lo, r.buf = 0, b
}

// skipTo drops bytes until a hello of this magic is at hand, and takes it. It
// gives up after limit dropped bytes; limit < 0 is none.
func (r *reader) skipTo(magic string, limit int, want *[16]byte) ([16]byte, error) {
	dropped := 0
	for {
		if err := r.need(helloLen); err != nil {
			return [16]byte{}, err
		}
		b := r.data()
		i := bytes.Index(b, []byte(magic))
		switch {
		case i < 0:
			i = len(b) - len(magic) + 1
		case len(b)-i < helloLen: // the rest is still to come
		default:
			nonce, ok := parseHello(b[i:], magic)
			if ok && (want == nil || nonce == *want) {
				r.lo += i + helloLen
				return nonce, nil
			}
			i++
		}
		r.lo += i
		if dropped += i; limit >= 0 && dropped > limit {
			return [16]byte{}, errProtocol
		}
	}
}

// frames delivers the frames of c until the stream ends or stops making sense.
func (r *reader) frames(c *Conn) error {
	for {
		if err := r.need(headerLen); err != nil {
			return err
		}
		kind, n, ok := parseHeader(r.data(), c.id)
		if !ok {
			return errProtocol
		}
		if err := r.need(headerLen + n); err != nil {
			return err
		}
		frame := r.data()[:headerLen+n]
		if !intact(frame) || !c.deliver(kind, frame[headerLen:]) {
			return errProtocol
		}
		r.lo += headerLen + n
	}
}
