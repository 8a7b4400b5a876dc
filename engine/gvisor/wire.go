package gvisor

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The names of the FIFOs in a box's directory, seen from the guest.
const (
	wireIn  = "wire.in"
	wireOut = "wire.out"
	wireLog = "agent.log" // the standard error of the agent and of the Sentry: a FIFO, never a file (a guest could rewrite one)
)

// pipeSize lets a fast stream run without a switch between the two sides for
// every 64 KiB.
const pipeSize = 1 << 20

// guestEnd is what the Sentry gets of the wire. It is opened for reading and
// writing, so that neither side ever sees an end of file when the other is gone:
// a box outlives the daemon.
type guestEnd struct{ in, out, log *os.File }

func (g *guestEnd) close() {
	for _, f := range []*os.File{g.in, g.out, g.log} {
		if f != nil {
			f.Close()
		}
	}
}

func makeWire(dir string) (*guestEnd, error) {
	g := &guestEnd{}
	for _, end := range []struct {
		name string
		file **os.File
		size int
	}{{wireIn, &g.in, pipeSize}, {wireOut, &g.out, pipeSize}, {wireLog, &g.log, 0}} {
		path := filepath.Join(dir, end.name)
		if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			g.close()
			return nil, err
		}
		// Not through os.OpenFile: that would make the description non-blocking
		// and register it with this process's poller.
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			g.close()
			return nil, err
		}
		*end.file = os.NewFile(uintptr(fd), path)
		if end.size > 0 {
			// The system's bound on pipe memory may refuse; the wire is slower then.
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, end.size)
		}
	}
	return g, nil
}

// wire is the host's end: a net.Conn over the two FIFOs.
type wire struct {
	in, out *os.File
	once    sync.Once
	err     error
}

func openWire(dir string) (*wire, error) {
	// Read-write, so that opening does not wait for the other side.
	in, err := os.OpenFile(filepath.Join(dir, wireIn), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(dir, wireOut), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		in.Close()
		return nil, err
	}
	return &wire{in: in, out: out}, nil
}

func openLog(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, wireLog), os.O_RDWR|unix.O_NONBLOCK, 0)
}

// lastWords is what a Sentry said that did not come up, to add to an error; it
// does not wait.
func lastWords(dir string) string {
	log, err := openLog(dir)
	if err != nil {
		return ""
	}
	defer log.Close()
	buf := make([]byte, 4096)
	if err := log.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return ""
	}
	n, _ := log.Read(buf) // nothing said is no failure
	if n == 0 {
		return ""
	}
	return ": it said " + strconv.QuoteToASCII(string(buf[:min(n, 1024)]))
}

func (w *wire) Read(p []byte) (int, error)  { return w.out.Read(p) }
func (w *wire) Write(p []byte) (int, error) { return w.in.Write(p) }

// Close lets go of this end; the box keeps its own.
func (w *wire) Close() error {
	w.once.Do(func() { w.err = errors.Join(w.in.Close(), w.out.Close()) })
	return w.err
}

func (w *wire) SetDeadline(t time.Time) error {
	return errors.Join(w.SetReadDeadline(t), w.SetWriteDeadline(t))
}
func (w *wire) SetReadDeadline(t time.Time) error  { return w.out.SetReadDeadline(t) }
func (w *wire) SetWriteDeadline(t time.Time) error { return w.in.SetWriteDeadline(t) }
func (w *wire) LocalAddr() net.Addr                { return wireAddr{} }
func (w *wire) RemoteAddr() net.Addr               { return wireAddr{} }

type wireAddr struct{}

func (wireAddr) Network() string { return "fifo" }
func (wireAddr) String() string  { return "guest" }

// A ring keeps the last bytes of what the agent says on standard error.
type ring struct {
	mu  sync.Mutex
	buf []byte
	max int
}

func newRing(size int) *ring { return &ring{max: size} }

// ReadFrom implements [io.ReaderFrom]; it ends with the reader's error.
func (r *ring) ReadFrom(src io.Reader) (int64, error) {
	var total int64
	chunk := make([]byte, 4096)
	for {
		n, err := src.Read(chunk)
		total += int64(n)
		r.mu.Lock()
		r.buf = append(r.buf, chunk[:n]...)
		if over := len(r.buf) - r.max; over > 0 {
			r.buf = append(r.buf[:0], r.buf[over:]...)
		}
		r.mu.Unlock()
		if err != nil {
			return total, err
		}
	}
}

// crash finds where a Go program began to say what it dies of: the stacks that
// follow are long, and say less.
var crash = regexp.MustCompile(`(?m)^(panic|fatal error|SIG[A-Z]+): `)

// drain takes in what lies in the log of an ended box, and does not wait for more.
func (r *ring) drain(dir string) {
	fd, err := unix.Open(filepath.Join(dir, wireLog), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10) // all that such a pipe holds
	n, err := unix.Read(fd, buf)
	if err != nil {
		return
	}
	_, _ = r.ReadFrom(bytes.NewReader(buf[:n]))
}

// tail is the last kilobyte, or the kilobyte from where the end began. It is the
// guest's: quote it before showing it.
func (r *ring) tail() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	const most = 1024
	s := string(r.buf)
	if at := crash.FindStringIndex(s); at != nil {
		s = s[at[0]:]
		s = s[:min(len(s), most)]
	}
	return strings.TrimSpace(s[max(0, len(s)-most):])
}
