package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// agentDir is the environment variable that makes a test binary the guest agent.
const agentDir = "ARENERO_LOCAL_AGENT"

// Local returns an engine whose boxes are the real guest agent, as a process of
// this machine in a process namespace of its own, on a wire of two FIFOs as
// gVisor's. There is NO isolation: what runs in it is root here, sees this file
// system and this network, and no limit is enforced from outside. It is for tests
// of the host and of the doors, which must not care which engine they have.
//
// TestMain of a package that uses it begins with [LocalAgent].
func Local(t testing.TB) arenero.Engine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("the local engine needs root: it makes process namespaces")
	}
	// Not t.TempDir: its name holds the test's, and sockets have short names.
	dir, err := os.MkdirTemp("", "arn")
	if err != nil {
		t.Fatal(err)
	}
	e := &local{dir: dir}
	t.Cleanup(func() {
		ids, err := e.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			t.Errorf("the test left box %s", id)
			if inst, err := e.Open(context.Background(), id); err == nil {
				_ = inst.Destroy(context.Background()) // the test has failed already
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Again returns another engine over the same boxes, as a new daemon has.
//
//nolint:errcheck // an engine of another kind is the test's mistake
func Again(e arenero.Engine) arenero.Engine { return &local{dir: e.(*local).dir} }

type local struct{ dir string }

func (e *local) Name() string { return "local" }

func (e *local) Probe(context.Context) (arenero.Capabilities, error) {
	return arenero.Capabilities{Version: "0", Isolation: "none", Platform: "process", CPU: "any"}, nil
}

func (e *local) Create(ctx context.Context, b arenero.Box) (_ arenero.Instance, err error) {
	const op = "create local box"
	if b.Restore != "" {
		return nil, arenero.Errorf(arenero.Invalid, op, b.ID, "the local engine restores nothing")
	}
	dir := filepath.Join(e.dir, b.ID)
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil, arenero.Errorf(arenero.Conflict, op, b.ID, "it exists")
	} else if err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	var ends [2]*os.File
	for i, name := range []string{"in", "out"} {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
		}
		if ends[i], err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
		}
		defer ends[i].Close()
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
	}
	errFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
	}
	defer errFile.Close()
	c := exec.CommandContext(context.WithoutCancel(ctx), exe) // a box outlives the call
	c.Env = append([]string{agentDir + "=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin"}, b.Env...)
	c.Stdin, c.Stdout, c.Stderr = ends[0], ends[1], errFile
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := startOnOwnThread(c); err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
	}
	pid := strconv.Itoa(c.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(pid), 0o600); err != nil {
		_ = c.Process.Kill() // the first error says more
		return nil, arenero.Errorf(arenero.Internal, op, b.ID, "%w", err)
	}
	return e.Open(ctx, b.ID)
}

// startOnOwnThread starts a child that dies with this test process. The kernel
// ties that to the thread that forked, so the thread stays until the child ends;
// it reaps the child too.
func startOnOwnThread(c *exec.Cmd) error {
	started := make(chan error)
	go func() { // ends with the child, which Destroy ends
		runtime.LockOSThread() // never given back: the thread ends with this goroutine
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait() // how it ended is asked of the box
		}
	}()
	return <-started
}

func (e *local) Open(_ context.Context, id string) (arenero.Instance, error) {
	const op = "open local box"
	dir := filepath.Join(e.dir, id)
	b, err := os.ReadFile(filepath.Join(dir, "pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, arenero.Errorf(arenero.NotFound, op, id, "no such box")
	}
	if err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, id, "%w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, arenero.Errorf(arenero.Internal, op, id, "%w", err)
	}
	return &localBox{id: id, dir: dir, pid: pid}, nil
}

func (e *local) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return nil, arenero.Errorf(arenero.Internal, "list local boxes", "", "%w", err)
	}
	ids := []string{}
	for _, x := range entries {
		ids = append(ids, x.Name())
	}
	return ids, nil
}

type localBox struct {
	id, dir string
	pid     int

	mu        sync.Mutex
	conn      net.Conn
	destroyed bool
}

func (b *localBox) ID() string { return b.id }

func (b *localBox) Dial(context.Context) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close() // it may be closed
	}
	w, err := os.OpenFile(filepath.Join(b.dir, "in"), os.O_RDWR, 0)
	if err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, "dial local box", b.id, "%w", err)
	}
	r, err := os.OpenFile(filepath.Join(b.dir, "out"), os.O_RDWR, 0)
	if err != nil {
		_ = w.Close() // the first error says more
		return nil, arenero.Errorf(arenero.Unavailable, "dial local box", b.id, "%w", err)
	}
	b.conn = &fifoConn{r: r, w: w}
	return b.conn, nil
}

func (b *localBox) Usage(context.Context) (arenero.Usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", b.pid))
	if err != nil {
		return arenero.Usage{}, arenero.Errorf(arenero.Unavailable, "measure local box", b.id, "%w", err)
	}
	f := strings.Fields(string(raw))
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return arenero.Usage{}, arenero.Errorf(arenero.Internal, "measure local box", b.id, "%w", err)
	}
	rss := pages * int64(os.Getpagesize())
	return arenero.Usage{Memory: rss, MaxMemory: rss, Tasks: 1}, nil
}

// alive reports whether the agent runs, and is not another process of its number.
func (b *localBox) alive() bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.pid))
	return err == nil && strings.Contains(string(env), agentDir+"="+b.dir)
}

func (b *localBox) Wait(ctx context.Context) (arenero.Exit, error) {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for b.alive() {
		select {
		case <-ctx.Done():
			return arenero.Exit{}, arenero.Errorf(arenero.Canceled, "wait for local box", b.id, "%w", ctx.Err())
		case <-t.C:
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return arenero.Exit{Code: 137, Destroyed: b.destroyed, Reason: "the agent ended"}, nil
}

func (b *localBox) Destroy(ctx context.Context) error {
	b.mu.Lock()
	b.destroyed = true
	conn := b.conn
	b.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // it may be closed
	}
	if b.alive() {
		// It is PID 1 of its namespace: with it goes everything in it.
		if err := unix.Kill(b.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return arenero.Errorf(arenero.Internal, "destroy local box", b.id, "%w", err)
		}
	}
	if _, err := b.Wait(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return arenero.Errorf(arenero.Internal, "destroy local box", b.id, "%w", err)
	}
	return nil
}

// fifoConn makes two FIFOs one connection.
type fifoConn struct{ r, w *os.File }

func (c *fifoConn) Read(p []byte) (int, error)         { return c.r.Read(p) }
func (c *fifoConn) Write(p []byte) (int, error)        { return c.w.Write(p) }
func (c *fifoConn) Close() error                       { return errors.Join(c.r.Close(), c.w.Close()) }
func (c *fifoConn) LocalAddr() net.Addr                { return fifoAddr{} }
func (c *fifoConn) RemoteAddr() net.Addr               { return fifoAddr{} }
func (c *fifoConn) SetReadDeadline(t time.Time) error  { return c.r.SetReadDeadline(t) }
func (c *fifoConn) SetWriteDeadline(t time.Time) error { return c.w.SetWriteDeadline(t) }
func (c *fifoConn) SetDeadline(t time.Time) error {
	return errors.Join(c.r.SetReadDeadline(t), c.w.SetWriteDeadline(t))
}

type fifoAddr struct{}

func (fifoAddr) Network() string { return "fifo" }
func (fifoAddr) String() string  { return "fifo" }

// SignalLocal sends a signal ("KILL", "STOP", "CONT") to the agent of a box of
// the local engine, as a fault would.
func SignalLocal(e arenero.Engine, id, signal string) error {
	inst, err := e.Open(context.Background(), id)
	if err != nil {
		return err
	}
	//nolint:errcheck // see Again
	return unix.Kill(inst.(*localBox).pid, unix.SignalNum("SIG"+signal))
}
