package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"
)

// The link makes connections out of a byte stream that has none.
//
// A sandbox has one wire: a pair of FIFOs, a virtio-serial port. Nobody dials
// it, nobody hangs up, and either end may vanish in the middle of a byte run and
// come back as another process, or as a copy of itself restored from a snapshot.
// What the dead end wrote may still be in the pipe. The link finds the border.
//
// # Protocol
//
// Two things travel: hellos of 32 bytes and frames.
//
//	hello  = magic[8] version[4] nonce[16] crc32c[4]
//	frame  = magic[2] kind[1] 0[1] session[4] length[4] crc32c[4] payload[length]
//
// All numbers are little endian; length is at most 64 KiB; a crc covers all that
// precedes it and the payload. The session is the first four bytes of the nonce.
//
// The host opens a session. It writes 64 KiB + 16 zeros, then a hello with a
// fresh random nonce. Whatever frame its predecessor left unfinished, the zeros
// fill up: its crc then fails, or the next header is not one, and the guest is at
// the zeros with nothing left to swallow. From there it looks for a hello byte by
// byte. It never looks for one inside a payload, so bytes of a client cannot forge
// a session. The guest ends the old session and answers with a hello of the other
// magic and the same nonce, after finishing whatever frame it was writing. The host
// drops everything until it sees exactly that answer; the nonce is unguessable, so
// stale bytes cannot hold it. It gives up after 16 MiB or when its context ends.
//
// Frames are data, credit and end. Each end may send 1 MiB that its peer's reader
// has not consumed; credit gives some back. So the one goroutine that reads the
// wire never waits for a slow reader, always sees the next hello, and never holds
// more than 1 MiB: a host killed in the middle of anything cannot wedge the guest,
// and a hostile guest cannot make the host hold more.
const (
	maxPayload = 64 << 10
	headerLen  = 16
	helloLen   = 32
	padLen     = maxPayload + headerLen
	window     = 1 << 20
	maxStale   = 16 << 20
	version    = 1

	magic0, magic1 = 0xA7, 0x6E
)

const (
	kindData   = 1
	kindCredit = 2 // payload: 4 bytes, how much was consumed
	kindEnd    = 3
)

const (
	hostMagic  = "\xffARENERO"
	guestMagic = "\xfeARENERO"
)

var (
	errPreempted = errors.New("another session took over the wire")
	errProtocol  = errors.New("the peer broke the link protocol")
	errCut       = errors.New("the wire was cut")
)

// castagnoli is computed once; x86 and arm64 have it in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// scratch holds the buffers frames are built and received in: an idle link holds
// none, so a daemon with a thousand sandboxes does not pay for them.
var scratch = sync.Pool{New: func() any { b := make([]byte, 0, maxPayload+4*headerLen); return &b }}

// link is what both ends share: the raw stream, who may write to it, and the
// session that is alive on it.
type link struct {
	r io.Reader
	w io.Writer

	turn chan struct{} // holds one token: the right to write to w
	tail []byte        // the rest of a frame a deadline cut off; sent before anything else; guarded by turn

	mu      sync.Mutex
	session *Conn // nil between sessions
	writing *Conn // whose deadline governs the raw write that is going on
}

func newLink(r io.Reader, w io.Writer) *link {
	l := &link{r: r, w: w, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

func putHello(b []byte, magic string, nonce [16]byte) {
	copy(b[:8], magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	copy(b[12:28], nonce[:])
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// parseHello reads a hello at the start of b, which holds at least helloLen.
func parseHello(b []byte, magic string) (nonce [16]byte, ok bool) {
	if string(b[:8]) != magic || binary.LittleEndian.Uint32(b[8:]) != version ||
		binary.LittleEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli) {
		return nonce, false
	}
	copy(nonce[:], b[12:28])
	return nonce, true
}

func sessionOf(nonce [16]byte) uint32 { return binary.LittleEndian.Uint32(nonce[:4]) }

func appendFrame(b []byte, kind byte, session uint32, payload []byte) []byte {
	var h [headerLen]byte
	h[0], h[1], h[2] = magic0, magic1, kind
	binary.LittleEndian.PutUint32(h[4:], session)
	binary.LittleEndian.PutUint32(h[8:], uint32(len(payload)))
	crc := crc32.Update(crc32.Checksum(h[:12], castagnoli), castagnoli, payload)
	binary.LittleEndian.PutUint32(h[12:], crc)
	return append(append(b, h[:]...), payload...)
}

// parseHeader reads a header at the start of b, which holds at least headerLen.
func parseHeader(b []byte, session uint32) (kind byte, length int, ok bool) {
	n := binary.LittleEndian.Uint32(b[8:])
	if b[0] != magic0 || b[1] != magic1 || b[3] != 0 || n > maxPayload ||
		binary.LittleEndian.Uint32(b[4:]) != session {
		return 0, 0, false
	}
	switch b[2] {
	case kindData:
		ok = n > 0
	case kindCredit:
		ok = n == 4
	case kindEnd:
		ok = n == 0
	}
	return b[2], int(n), ok
}

func intact(frame []byte) bool {
	crc := crc32.Update(crc32.Checksum(frame[:12], castagnoli), castagnoli, frame[headerLen:])
	return binary.LittleEndian.Uint32(frame[12:]) == crc
}

// replace makes c the session; the one before it fails.
func (l *link) replace(c *Conn) {
	l.mu.Lock()
	old := l.session
	l.session = c
	l.mu.Unlock()
	if old != nil && old != c {
		old.fail(errPreempted)
	}
}

// send writes one or more whole frames of c, or a hello of the link itself when
// c is nil. It blocks for its turn and for the stream until c's write deadline or
// end. A frame that was begun is always finished, by the next writer if need be:
// sent says that it was begun, even when err is not nil.
func (l *link) send(c *Conn, b []byte) (sent bool, err error) {
	var dead, gone <-chan struct{}
	if c != nil {
		dead, gone = c.wdead.wait(), c.done
	}
	select {
	case <-l.turn:
	case <-dead:
		return false, os.ErrDeadlineExceeded
	case <-gone:
		return false, c.reason()
	}
	defer func() { l.turn <- struct{}{} }()
	if len(l.tail) > 0 {
		n, err := l.write(c, l.tail)
		l.tail = l.tail[n:]
		if err != nil {
			return false, err
		}
	}
	l.tail = nil
	if c != nil && c.ended() {
		return false, c.reason()
	}
	n, err := l.write(c, b)
	if n > 0 && n < len(b) {
		l.tail = bytes.Clone(b[n:])
	}
	return n > 0, err
}

// write writes b under c's deadline, which may move while it blocks. The caller
// has the turn.
func (l *link) write(c *Conn, b []byte) (int, error) {
	if d, ok := l.w.(writeDeadliner); ok {
		l.mu.Lock()
		l.writing = c
		var t time.Time
		if c != nil {
			t = c.wdead.time()
			if c.ended() {
				t = longAgo
			}
		}
		_ = d.SetWriteDeadline(t)
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			l.writing = nil
			l.mu.Unlock()
		}()
	}
	n, err := l.w.Write(b)
	if n < 0 || n > len(b) {
		n, err = 0, errCut
	}
	if n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

// retime gives the raw write that is going on for c, if any, a new deadline.
func (l *link) retime(c *Conn, t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d, ok := l.w.(writeDeadliner); ok && l.writing == c {
		_ = d.SetWriteDeadline(t)
	}
}

type writeDeadliner interface{ SetWriteDeadline(time.Time) error }

// longAgo as a deadline ends what blocks.
var longAgo = time.Unix(1, 0)
