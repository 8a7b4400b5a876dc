// Package dial is the host's end of the wire: it speaks to the guest agent in one
// sandbox and implements [arenero.Guest].
//
// The guest is hostile. Every reply is bounded in size and count, every call in
// time; strings are made valid UTF-8, numbers are checked, and what a guest says
// is only ever data: nothing here uses it as a path, a size to allocate, or a
// text for a terminal.
package dial

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

const (
	callTimeout = 30 * time.Second // of a call that is answered at once
	maxCount    = 4096             // entries of a list that is not of files

	// HTTP/2 windows: a stream nobody reads holds at most streamWindow, and so many
	// of them may stand still before the others have to wait.
	streamWindow = 512 << 10
	connWindow   = 64 * streamWindow

	// A wire that is silent for so long is asked whether anybody is there.
	pingAfter   = 15 * time.Second
	pingTimeout = 15 * time.Second
)

// Guest is one guest agent at the end of an open wire.
type Guest struct {
	api  wire.GuestClient
	http *http.Transport
	conn net.Conn
	// limit is callTimeout, which other limits are multiples of: an interpreter
	// imports for seconds, a disk may be busy. Tests of ours are more impatient.
	limit time.Duration
	once  sync.Once
	err   error
}

var _ arenero.Guest = (*Guest)(nil)

// Open starts a session on a box's wire and owns conn from now on, also when it
// fails: [arenero.Unavailable] when nobody answers before ctx ends. A session
// that another one has taken over fails all its calls.
func Open(ctx context.Context, conn net.Conn) (arenero.Guest, error) {
	session, err := wire.Connect(ctx, conn)
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	only := &onlyConn{Conn: session, over: make(chan struct{})}
	first := make(chan net.Conn, 1)
	first <- only
	t := &http.Transport{
		Protocols: &protocols,
		// There is one connection; when it is lost, so is the session. Until then who
		// wants another waits: net/http asks for one when two calls come at the start,
		// and gives them both the first.
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case c := <-first:
				return c, nil
			case <-only.over:
				return nil, errLost
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(callTimeout): // the guest allows no more streams
				return nil, errBusy
			}
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:              wire.FrameSize,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
			MaxConcurrentStreams:          1000,
		},
	}
	g := &Guest{http: t, conn: only, limit: callTimeout}
	g.api = wire.NewGuestClient(&http.Client{Transport: t}, "http://guest",
		append(wire.ClientOptions(), connect.WithInterceptors(hangUp{}))...)
	return g, nil
}

// hangUp lets go of a stream's answer when its context ends. Once an answer has
// begun, net/http does not look at the context while it waits for the guest to take
// more of the request: a guest could hold the sender for ever.
type hangUp struct{}

func (hangUp) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (hangUp) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		context.AfterFunc(ctx, func() { _ = conn.CloseResponse() }) // runs at the latest when the stream is closed
		return conn
	}
}

func (hangUp) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// onlyConn says when it is closed, by whomever.
type onlyConn struct {
	net.Conn

	once sync.Once
	over chan struct{}
}

func (c *onlyConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

var (
	errLost = errors.New("the wire to the sandbox is lost")
	errBusy = errors.New("the wire to the sandbox takes no more calls")
)

// Close ends the session. What runs in the sandbox goes on.
func (g *Guest) Close() error {
	g.once.Do(func() {
		g.err = g.conn.Close()
		g.http.CloseIdleConnections()
	})
	return g.err
}

// call makes one call that is answered at once.
func call[Req, Res any](ctx context.Context, g *Guest, op string, f func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	res, err := f(ctx, req)
	return res, wire.FromWire(op, err)
}

// Hello implements [arenero.Guest].
func (g *Guest) Hello(ctx context.Context) (arenero.Hello, error) {
	res, err := call(ctx, g, "greet guest", g.api.Hello, &wire.HelloRequest{})
	if err != nil {
		return arenero.Hello{}, err
	}
	h := arenero.Hello{Version: word(res.GetVersion(), 64), Uptime: millis(res.GetUptimeMs())}
	for _, s := range head(res.GetSpecs(), 64) {
		h.Specs = append(h.Specs, arenero.KernelSpec{
			Name: word(s.GetName(), 64), Language: word(s.GetLanguage(), 64), Display: word(s.GetDisplay(), 128),
		})
	}
	return h, nil
}

// Wake implements [arenero.Guest].
func (g *Guest) Wake(ctx context.Context, w arenero.Wake) error {
	// Warm kernels are reseeded before the answer.
	ctx, cancel := context.WithTimeout(ctx, 4*g.limit)
	defer cancel()
	_, err := g.api.Wake(ctx, &wire.WakeRequest{
		SandboxId: w.SandboxID, Hostname: w.Hostname, NowUnixNanos: w.Now.UnixNano(), Entropy: w.Entropy,
		Env: w.Env, Workdir: w.Workdir, Warm: w.Warm,
		User: &wire.User{Name: w.User.Name, Uid: w.User.UID, Gid: w.User.GID, Home: w.User.Home},
		Limits: &wire.Limits{
			Cpus: w.Limits.CPUs, Memory: w.Limits.Memory, Processes: int64(w.Limits.Processes),
			Disk: w.Limits.Disk, OpenFiles: int64(w.Limits.OpenFiles), Output: w.Limits.Output,
		},
	})
	return wire.FromWire("wake guest", err)
}

// text is a string of the guest's made fit for the rest of the house: valid
// UTF-8, at most n bytes.
func text(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// word is a name of the guest's: as text, and nothing that moves a terminal.
func word(s string, n int) string { return wire.Printable(text(s, n)) }

func head[T any](list []T, n int) []T {
	if len(list) > n {
		return list[:n]
	}
	return list
}

// maxSpan keeps times within what can be added without overflow.
const maxSpan = 100 * 365 * 24 * time.Hour

func millis(ms int64) time.Duration { return span(ms, time.Millisecond) }
func micros(us int64) time.Duration { return span(us, time.Microsecond) }

func span(n int64, unit time.Duration) time.Duration {
	if n < 0 {
		return 0
	}
	if n > int64(maxSpan/unit) {
		return maxSpan
	}
	return time.Duration(n) * unit
}

func moment(unixNanos int64) time.Time {
	if unixNanos < 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNanos)
}

// within keeps a number of the guest's in bounds.
func within(n, low, high int64) int { return int(min(max(n, low), high)) }

var reasons = map[arenero.ExitReason]bool{
	arenero.Exited: true, arenero.RaisedError: true, arenero.TimedOut: true, arenero.OutOfMemory: true,
	arenero.DiskFull: true, arenero.ProcessLimit: true, arenero.OutputLimit: true, arenero.WasKilled: true,
	arenero.Cancelled: true, arenero.KernelDied: true,
}

// reason is what the guest says of an end, if it is one of our words.
func reason(s string) arenero.ExitReason {
	if r := arenero.ExitReason(s); reasons[r] {
		return r
	}
	return arenero.WasKilled
}

func silent(op string) error {
	return arenero.Errorf(arenero.Timeout, op, "", "the guest gave no answer")
}

func broken(op, what string) error {
	return arenero.Errorf(arenero.Internal, op, "", "the guest broke the protocol: %s", what)
}
