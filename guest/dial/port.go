package dial

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

// DialPort implements [arenero.Guest].
func (g *Guest) DialPort(ctx context.Context, port int) (net.Conn, error) {
	const op = "dial port"
	if port < 1 || port > 65535 {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "port %d is not between 1 and 65535", port)
	}
	// The connection outlives the call; its Close ends the stream.
	st, err := openStream(context.WithoutCancel(ctx), op, g.api.Dial, &wire.DialInput{Port: int32(port)})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, st.cancel)
	_, err = st.within(g.limit)
	if !stop() && err == nil {
		err = wire.FromWire(op, ctx.Err())
	}
	if err != nil {
		st.close()
		return nil, err
	}
	near, far := net.Pipe() // its deadlines are the connection's
	c := &portConn{Conn: near, st: st, port: port}
	c.pumps.Go(func() { // ends when either side does
		defer far.Close()
		for {
			m, err := st.receive()
			if err != nil {
				return
			}
			if len(m.GetData()) == 0 {
				continue // a reader is not to wake for nothing
			}
			if _, err := far.Write(m.GetData()); err != nil {
				return
			}
		}
	})
	c.pumps.Go(func() { // ends when the near side is closed, or has said all
		buf := make([]byte, 64<<10)
		for {
			n, err := far.Read(buf)
			if n > 0 && st.send(&wire.DialInput{Data: buf[:n]}) != nil {
				return
			}
			if err != nil || n == 0 { // an empty write is CloseWrite's
				st.wmu.Lock()
				_ = st.s.CloseRequest() // the guest may have gone first
				st.wmu.Unlock()
				return
			}
		}
	})
	return c, nil
}

// A portConn is a connection to a port in a sandbox.
type portConn struct {
	net.Conn

	st    *stream[wire.DialInput, wire.DialOutput]
	port  int
	pumps sync.WaitGroup
	once  sync.Once

	wmu  sync.Mutex // one Write or CloseWrite at a time
	said bool       // CloseWrite was called
}

// Write sends to the port. After CloseWrite it fails.
func (c *portConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.said {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	return c.Conn.Write(p)
}

// CloseWrite tells the other side that no more comes, as a TCP connection can;
// reading goes on.
func (c *portConn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.said {
		return nil
	}
	c.said = true
	// An empty write wakes the pump, which has sent all that came before it.
	_, err := c.Conn.Write(nil)
	return err
}

// Close ends the connection on both sides and what carried it.
func (c *portConn) Close() error {
	c.once.Do(func() {
		_ = c.Conn.Close() // a pipe's end: never fails
		c.st.close()
		c.pumps.Wait()
	})
	return nil
}

// Read reports a closed pipe as the end of the stream, as a socket does.
func (c *portConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return n, err
}

func (c *portConn) LocalAddr() net.Addr  { return portAddr(0) }
func (c *portConn) RemoteAddr() net.Addr { return portAddr(c.port) }

type portAddr int

func (portAddr) Network() string { return "sandbox" }
func (p portAddr) String() string {
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p)}).String()
}
