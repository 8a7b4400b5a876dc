package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// pipes is a wire as gVisor has it: two pipes that live as long as the sandbox,
// while host ends come and go.
type pipes struct{ inR, inW, outR, outW *os.File }

func newPipes(t testing.TB) *pipes {
	t.Helper()
	var p pipes
	var err error
	if p.inR, p.inW, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if p.outR, p.outW, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{p.inR, p.inW, p.outR, p.outW} {
			_ = f.Close()
		}
	})
	return &p
}

// host is one host's end: its own descriptors of the same pipes.
func (p *pipes) host(t testing.TB) io.ReadWriteCloser {
	t.Helper()
	return hostEnd{dup(t, p.outR), dup(t, p.inW)}
}

type hostEnd struct{ r, w *os.File }

func (h hostEnd) Read(b []byte) (int, error)         { return h.r.Read(b) }
func (h hostEnd) Write(b []byte) (int, error)        { return h.w.Write(b) }
func (h hostEnd) Close() error                       { return errors.Join(h.r.Close(), h.w.Close()) }
func (h hostEnd) SetWriteDeadline(t time.Time) error { return h.w.SetWriteDeadline(t) }

func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var g *os.File
	_ = raw.Control(func(fd uintptr) { g, err = dupFD(fd) })
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func open(t testing.TB, rw io.ReadWriteCloser) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := Connect(ctx, rw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// echo serves every session of l by echoing, until l ends.
func echo(l *Listener) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
	return wg.Wait
}

func exchange(t testing.TB, c net.Conn, n int) {
	t.Helper()
	want := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(want)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(want); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("read: %v", err)
	}
	wg.Wait()
	if !bytes.Equal(got, want) {
		t.Fatal("bytes differ")
	}
}

func TestLinkCarriesBytes(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPipes(t)
	l := Listen(p.inR, p.outW)
	wait := echo(l)
	for _, n := range []int{1, 100, maxPayload, maxPayload + 1, 5 << 20} {
		c := open(t, p.host(t))
		exchange(t, c, n)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_ = l.Close()
	wait()
}

// Hosts die after any number of bytes of anything; the next one gets through.
func TestLinkSurvivesCuts(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPipes(t)
	l := Listen(p.inR, p.outW)
	wait := echo(l)
	for i := range 60 {
		cut := newCutter(p.host(t), rand.IntN(3*maxPayload))
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		c, err := Connect(ctx, cut)
		cancel()
		if err == nil {
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = c.Write(make([]byte, 4*maxPayload)) })
			if i%2 == 0 {
				_, _ = io.CopyN(io.Discard, c, int64(rand.IntN(maxPayload)))
			}
			wg.Wait()
			_ = c.Close()
		}
		whole := open(t, p.host(t))
		exchange(t, whole, 1000+rand.IntN(100_000))
		if i%3 == 0 { // and some leave without a word
			_ = whole.(*Conn).link.w.(io.Closer).Close()
		}
		_ = whole.Close()
	}
	_ = l.Close()
	wait()
}

// cutter is a host that dies after writing some bytes: the rest never arrives.
type cutter struct {
	io.ReadWriteCloser

	mu   sync.Mutex
	left int
}

func newCutter(rw io.ReadWriteCloser, n int) *cutter { return &cutter{ReadWriteCloser: rw, left: n} }

func (c *cutter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(b), c.left)
	c.left -= n
	if n > 0 {
		if m, err := c.ReadWriteCloser.Write(b[:n]); err != nil {
			return m, err
		}
	}
	if n < len(b) {
		_ = c.Close()
		return n, io.ErrClosedPipe
	}
	return n, nil
}

// A guest blocked in writing to a host that is gone serves the next host, and a
// guest that does not read its session still notices the next one.
func TestLinkPreempts(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPipes(t)
	l := Listen(p.inR, p.outW)
	first := open(t, p.host(t))
	old, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { _, err := old.Write(make([]byte, 8<<20)); wrote <- err }()
	for total := 0; total < window; { // fill the guest's window: nobody reads there
		_ = first.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := first.Write(make([]byte, 32<<10))
		if total += n; err != nil {
			t.Fatalf("after %d: %v", total, err)
		}
	}
	_ = first.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := first.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a full window gave %v", err)
	}
	_ = first.(*Conn).link.w.(io.Closer).Close()

	second := open(t, p.host(t))
	if err := <-wrote; err == nil {
		t.Fatal("the old session went on")
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); err == nil {
		t.Fatal("the old session can be read")
	}
	go func() { _, _ = io.Copy(c, c) }()
	exchange(t, second, 100_000)
	_ = first.Close()
	_ = second.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("after the host's end: %v", err)
	}
	_ = l.Close()
}

func TestLinkDeadlines(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPipes(t)
	l := Listen(p.inR, p.outW)
	c := open(t, p.host(t))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
	time.Sleep(10 * time.Millisecond)
	_ = c.SetReadDeadline(time.Now())
	wg.Wait()
	g, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// The host's raw pipe is full as nobody reads there: its own reader does, so
	// only the window stops the guest.
	_ = g.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	n, err := g.Write(make([]byte, 2*window))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n != window {
		t.Fatal(n, err)
	}
	_ = g.SetWriteDeadline(time.Time{})
	_ = c.SetReadDeadline(time.Time{})
	if _, err := io.CopyN(io.Discard, c, window); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { _, _ = g.Write([]byte("after")) })
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "after" {
		t.Fatal(string(b), err)
	}
	wg.Wait()
	_ = c.Close()
	_ = l.Close()
}

func TestConnectGivesUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("silent", func(t *testing.T) {
		p := newPipes(t)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, p.host(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
	t.Run("babbling", func(t *testing.T) {
		a, b := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, b) })
		wg.Go(func() {
			for junk := bytes.Repeat([]byte(guestMagic), 1000); ; {
				if _, err := b.Write(junk); err != nil {
					return
				}
			}
		})
		if _, err := Connect(context.Background(), a); !errors.Is(err, errProtocol) {
			t.Fatal(err)
		}
		_ = b.Close()
		wg.Wait()
	})
}

// A guest that sends more than its window, or nonsense, loses the session.
func TestHostRefusesFloods(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPipes(t)
	l := Listen(p.inR, p.outW)
	c := open(t, p.host(t))
	g, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	g.(*Conn).credit = 1 << 30
	go func() { _, _ = g.Write(make([]byte, 3*window)) }()
	if err := waitErr(c); !errors.Is(err, errProtocol) {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = l.Close()
}

func waitErr(c net.Conn) error {
	<-c.(*Conn).done
	_, err := c.Read(make([]byte, 1))
	return err
}

func FuzzHostReads(f *testing.F) {
	var nonce [16]byte
	b := appendFrame(nil, kindData, 0, []byte("hello"))
	f.Add(append(b, appendFrame(nil, kindEnd, 0, nil)...))
	f.Add(appendFrame(nil, kindCredit, 0, []byte{1, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConn(newLink(bytes.NewReader(b), io.Discard), nonce, false)
		r := &reader{r: bytes.NewReader(b)}
		if err := r.frames(c); err == nil {
			t.Fatal("frames ended without an error")
		}
		if c.in.size > window || len(r.buf) > 2*maxPayload {
			t.Fatalf("holds %d and %d bytes", c.in.size, len(r.buf))
		}
	})
}

// Whatever came before, a guest finds the hello and then reads the frames.
func FuzzGuestFindsHello(f *testing.F) {
	f.Add([]byte(hostMagic), uint16(3))
	f.Add(appendFrame(nil, kindData, 7, make([]byte, 100))[:50], uint16(9))
	f.Fuzz(func(t *testing.T, junk []byte, cut uint16) {
		if len(junk) > maxPayload {
			return
		}
		old, nonce := [16]byte{7}, [16]byte{1, 2, 3, 4, 5}
		hello := func(n [16]byte) []byte {
			b := make([]byte, padLen+helloLen)
			putHello(b[padLen:], hostMagic, n)
			return b
		}
		in := hello(old)
		half := appendFrame(nil, kindData, sessionOf(old), junk)
		in = append(in, half[:min(int(cut), len(half))]...)
		in = append(in, hello(nonce)...)
		in = append(in, appendFrame(nil, kindData, sessionOf(nonce), []byte("here"))...)
		in = append(in, appendFrame(nil, kindEnd, sessionOf(nonce), nil)...)
		pr, pw := io.Pipe()
		go func() { _, _ = pw.Write(in) }()
		l := Listen(pr, io.Discard)
		defer l.Close()
		deadline := time.Now().Add(10 * time.Second)
		for time.Now().Before(deadline) {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if c.(*Conn).id != sessionOf(nonce) {
				continue
			}
			if b, err := io.ReadAll(c); err != nil || string(b) != "here" {
				t.Fatalf("%q %v", b, err)
			}
			return
		}
		t.Fatal("no session")
	})
}

func BenchmarkLink(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10} {
		b.Run(byteSize(size), func(b *testing.B) {
			p := newPipes(b)
			l := Listen(p.inR, p.outW)
			c := open(b, p.host(b))
			g, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, c)
			}()
			msg := make([]byte, size)
			for b.Loop() {
				if _, err := g.Write(msg); err != nil {
					b.Fatal(err)
				}
			}
			_ = g.Close()
			<-done
			_ = c.Close()
			_ = l.Close()
		})
	}
}

func BenchmarkLinkRoundTrip(b *testing.B) {
	p := newPipes(b)
	l := Listen(p.inR, p.outW)
	wait := echo(l)
	c := open(b, p.host(b))
	msg := make([]byte, 64)
	for b.Loop() {
		_, _ = c.Write(msg)
		if _, err := io.ReadFull(c, msg); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.Close()
	_ = l.Close()
	wait()
}

func byteSize(n int) string {
	return map[int]string{1 << 10: "1KiB", 16 << 10: "16KiB", 64 << 10: "64KiB"}[n]
}

func dupFD(fd uintptr) (*os.File, error) {
	n, err := unixDup(fd)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "wire"), nil
}

func unixDup(fd uintptr) (int, error) { return unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }
