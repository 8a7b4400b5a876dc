package jupyter

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The client side of ZMTP 3.0 (rfc.zeromq.org/spec/23), as far as Jupyter needs
// it: the NULL mechanism and the socket types DEALER and SUB. Saying 3.0 in the
// greeting keeps the peer from using the heartbeats of 3.1 and lets a
// subscription be a plain message.
//
// docs/decisions/0004-zmtp.md says why this is our own.

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	maxFrames    = 64       // of one message
	maxCommand   = 64 << 10 // bytes of one command
	handshakeMax = 32       // commands before READY
)

var (
	errGarbage = errors.New("the kernel does not speak ZMTP")
	errFrames  = errors.New("the kernel sent a message of too many frames")
)

// A zconn is one ZMTP connection. send may be called by any goroutine, recv by
// one at a time.
type zconn struct {
	c net.Conn
	r *bufio.Reader

	mu  sync.Mutex
	out []byte // reused by send
}

// A zmessage is one multipart message. If it was over MaxMessage, the frames that
// did not fit are nil and dropped says how many bytes were thrown away.
type zmessage struct {
	frames  [][]byte
	dropped uint64
}

// openZMTP does the handshake on c. On an error c is closed.
func openZMTP(c net.Conn, socketType, identity string, deadline time.Time) (*zconn, error) {
	z := &zconn{c: c, r: bufio.NewReaderSize(c, 64<<10)}
	if err := z.handshake(socketType, identity, deadline); err != nil {
		c.Close()
		return nil, err
	}
	return z, nil
}

func (z *zconn) handshake(socketType, identity string, deadline time.Time) error {
	if err := z.c.SetDeadline(deadline); err != nil {
		return err
	}
	hello := greeting()
	hello = appendCommand(hello, "READY", appendProperty(appendProperty(nil, "Socket-Type", socketType), "Identity", identity))
	// Greeting and READY go out together: NULL has nothing to negotiate, and a
	// peer of another mechanism fails either way.
	if _, err := z.c.Write(hello); err != nil {
		return err
	}
	var peer [64]byte
	if _, err := io.ReadFull(z.r, peer[:]); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[9] != 0x7f || peer[10] < 3 || string(peer[12:17]) != "NULL\x00" {
		return errGarbage
	}
	for range handshakeMax {
		cmd, _, err := z.recvFrame(maxCommand)
		if err != nil {
			return err
		}
		if cmd.flags&flagCommand == 0 {
			return errGarbage
		}
		name, _ := commandName(cmd.body)
		switch name {
		case "READY":
			if socketType == "SUB" {
				if err := z.send([]byte{1}); err != nil { // subscribe to everything
					return err
				}
			}
			return z.c.SetDeadline(time.Time{})
		case "ERROR":
			return errors.New("the kernel refused the connection")
		}
	}
	return errGarbage
}

func greeting() []byte {
	b := make([]byte, 64, 160)
	b[0], b[8], b[9] = 0xff, 1, 0x7f
	b[10] = 3 // version 3.0
	copy(b[12:], "NULL")
	return b
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(b, byte(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

func appendCommand(b []byte, name string, body []byte) []byte {
	b = appendFrameHeader(b, flagCommand, 1+len(name)+len(body))
	b = append(b, byte(len(name)))
	b = append(b, name...)
	return append(b, body...)
}

func appendFrameHeader(b []byte, flags byte, size int) []byte {
	if size > 255 {
		b = append(b, flags|flagLong)
		return binary.BigEndian.AppendUint64(b, uint64(size))
	}
	return append(b, flags, byte(size))
}

// commandName splits a command's body into its name and its data.
func commandName(b []byte) (string, []byte) {
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return "", nil
	}
	return string(b[1 : 1+b[0]]), b[1+b[0]:]
}

// send writes one message in one write: under gVisor a system call is dear.
func (z *zconn) send(frames ...[]byte) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	b := z.out[:0]
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrameHeader(b, flags, len(f))
		b = append(b, f...)
	}
	_, err := z.c.Write(b)
	if cap(b) <= 64<<10 { // one large cell does not keep its memory for ever
		z.out = b
	} else {
		z.out = nil
	}
	return err
}

// recv reads the next message; commands are passed over. The frames are the
// caller's.
func (z *zconn) recv() (zmessage, error) {
	var m zmessage
	left := uint64(MaxMessage)
	for {
		f, dropped, err := z.recvFrame(left)
		if err != nil {
			return zmessage{}, err
		}
		if f.flags&flagCommand != 0 {
			if len(m.frames) > 0 || f.flags&flagMore != 0 {
				return zmessage{}, errGarbage
			}
			continue
		}
		if len(m.frames) == maxFrames {
			return zmessage{}, errFrames
		}
		left -= uint64(len(f.body))
		m.dropped += dropped
		m.frames = append(m.frames, f.body)
		if f.flags&flagMore == 0 {
			return m, nil
		}
	}
}

type zframe struct {
	flags byte
	body  []byte
}

// maxSkip is how much of a message that is too large is read and thrown away to
// find the next one. Nobody sends more by accident.
const maxSkip = 16 << 30

// recvFrame reads a frame. One over limit is read and thrown away: its body is
// nil and its size is returned. A command over maxCommand is an error.
func (z *zconn) recvFrame(limit uint64) (zframe, uint64, error) {
	flags, err := z.r.ReadByte()
	if err != nil {
		return zframe{}, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return zframe{}, 0, errGarbage
	}
	var size uint64
	if flags&flagLong != 0 {
		var b [8]byte
		if _, err := io.ReadFull(z.r, b[:]); err != nil {
			return zframe{}, 0, unexpected(err)
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		b, err := z.r.ReadByte()
		if err != nil {
			return zframe{}, 0, unexpected(err)
		}
		size = uint64(b)
	}
	f := zframe{flags: flags}
	if flags&flagCommand != 0 && size > maxCommand || size > maxSkip {
		return f, 0, fmt.Errorf("the kernel sent a frame of %d bytes", size)
	}
	if size > limit {
		_, err := io.CopyN(io.Discard, z.r, int64(size))
		return f, size, unexpected(err)
	}
	f.body, err = readN(z.r, int(size))
	return f, 0, unexpected(err)
}

// readN reads n bytes. It does not believe n: memory is taken as bytes arrive.
func readN(r io.Reader, n int) ([]byte, error) {
	const step = 1 << 20
	b := make([]byte, min(n, step))
	got := 0
	for {
		m, err := io.ReadFull(r, b[got:])
		got += m
		if err != nil || got == n {
			return b, err
		}
		bigger := make([]byte, min(n, 2*len(b)))
		copy(bigger, b)
		b = bigger
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (z *zconn) close() { z.c.Close() }
