package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
)

// A kernel is a name with an interpreter behind it, or with none when it died.
type kernel struct {
	m    *Manager
	name string
	spec spec
	env  map[string]string
	turn chan struct{} // held by the cell that runs; waiting senders are served in order

	change sync.Mutex // held while the interpreter is started, replaced or stopped

	mu      sync.Mutex
	dir     string
	session *session // nil before the first start
	stopped bool
}

func (k *kernel) current() *session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// start gives the kernel its first or a fresh interpreter.
func (k *kernel) start(ctx context.Context) error {
	k.change.Lock()
	defer k.change.Unlock()
	k.mu.Lock()
	stopped := k.stopped
	k.mu.Unlock()
	if stopped {
		return arenero.Errorf(arenero.Conflict, "start kernel", k.name, "it was stopped meanwhile")
	}
	s, err := startSession(ctx, k)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.session = s
	k.mu.Unlock()
	return nil
}

func (k *kernel) restart(ctx context.Context) error {
	if s := k.current(); s != nil {
		s.end(arenero.WasKilled)
	}
	return k.start(ctx)
}

// stop ends the interpreter for good. What waits for a turn gets a conflict.
func (k *kernel) stop() {
	k.mu.Lock()
	k.stopped = true
	s := k.session
	k.mu.Unlock()
	if s != nil {
		s.end(arenero.WasKilled)
	}
	k.change.Lock() // a start that was under way
	defer k.change.Unlock()
	if s := k.current(); s != nil {
		s.end(arenero.WasKilled)
	}
}

// live returns the interpreter, or a conflict if it is dead.
func (k *kernel) live(op string) (*session, error) {
	k.mu.Lock()
	s, stopped := k.session, k.stopped
	k.mu.Unlock()
	switch {
	case stopped:
		return nil, arenero.Errorf(arenero.NotFound, op, k.name, "the kernel was stopped")
	case s == nil:
		return nil, arenero.Errorf(arenero.Conflict, op, k.name, "the kernel is starting")
	}
	select {
	case <-s.gone:
		return nil, arenero.Errorf(arenero.Conflict, op, k.name, "the kernel is dead: %w", s.cause()).
			WithHint("restart the kernel; its variables are gone")
	default:
		return s, nil
	}
}

func (k *kernel) info() arenero.KernelInfo {
	k.mu.Lock()
	i := arenero.KernelInfo{Name: k.name, Language: k.spec.Language, Spec: k.spec.name, Dir: k.dir, State: "starting"}
	s := k.session
	k.mu.Unlock()
	if i.Dir == "" {
		i.Dir = k.m.cfg.Workdir()
	}
	if s == nil {
		return i
	}
	i.PID = s.proc.PID()
	i.State, i.Count = s.state()
	return i
}

// execute takes a turn and runs the cell in it.
func (k *kernel) execute(ctx context.Context, e arenero.Execute, answers <-chan string, on func(Event) error) error {
	const op = "execute"
	if len(e.Code) > MaxCode {
		return arenero.Errorf(arenero.TooLarge, op, k.name, "the code has %d bytes, at most %d are allowed", len(e.Code), MaxCode)
	}
	if e.Script != nil && len(e.Script.Stdin) > MaxCode {
		return arenero.Errorf(arenero.TooLarge, op, k.name, "the input has %d bytes, at most %d are allowed", len(e.Script.Stdin), MaxCode)
	}
	if !utf8.ValidString(e.Code) {
		return arenero.Errorf(arenero.Invalid, op, k.name, "the code is not UTF-8")
	}
	if i := strings.IndexByte(e.Code, 0); i >= 0 {
		return arenero.Errorf(arenero.Invalid, op, k.name, "the code has a NUL byte at %d", i)
	}
	if _, err := k.live(op); err != nil {
		return err // do not queue for the dead
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return ctxError(ctx, op, k.name)
	}
	if ctx.Err() != nil {
		return ctxError(ctx, op, k.name)
	}
	s, err := k.live(op)
	if err != nil {
		return err
	}
	return s.run(ctx, e, answers, on)
}

// askTimeout bounds completion and inspection, which a busy kernel answers late
// or never.
const askTimeout = 10 * time.Second

func (k *kernel) ask(ctx context.Context, op, kind string, content any, reply any) error {
	s, err := k.live(op)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := s.request(ctx, s.shell, kind, content)
	if err != nil {
		var e *arenero.Error
		if errors.As(err, &e) && e.Code == arenero.Timeout {
			return e.WithHint("a kernel answers when its cell is done")
		}
		return err
	}
	if m.content == nil {
		return arenero.Errorf(arenero.TooLarge, op, k.name, "the answer has %d bytes", m.dropped)
	}
	if err := json.Unmarshal(m.content, reply); err != nil {
		return arenero.Errorf(arenero.Internal, op, k.name, "read the kernel's answer: %w", err)
	}
	return nil
}

type position struct {
	Code   string `json:"code"`
	Cursor int    `json:"cursor_pos"` // in characters
	Detail int    `json:"detail_level"`
}

// at makes a position of a cursor in bytes.
func (k *kernel) at(op, code string, cursor int) (position, error) {
	if len(code) > MaxCode || !utf8.ValidString(code) {
		return position{}, arenero.Errorf(arenero.Invalid, op, k.name, "the code is too large or not UTF-8")
	}
	if cursor < 0 || cursor > len(code) {
		return position{}, arenero.Errorf(arenero.Invalid, op, k.name, "the cursor is at %d of %d bytes", cursor, len(code))
	}
	return position{Code: code, Cursor: utf8.RuneCountInString(code[:cursor])}, nil
}

// byteOffset is where the nth character of code starts.
func byteOffset(code string, n int) int {
	if n <= 0 {
		return 0
	}
	for i := range code {
		if n == 0 {
			return i
		}
		n--
	}
	return len(code)
}

const maxMatches = 10_000

func (k *kernel) complete(ctx context.Context, code string, cursor int) (arenero.Completion, error) {
	const op = "complete"
	p, err := k.at(op, code, cursor)
	if err != nil {
		return arenero.Completion{}, err
	}
	var r struct {
		Matches []string `json:"matches"`
		Start   int      `json:"cursor_start"`
		End     int      `json:"cursor_end"`
	}
	if err := k.ask(ctx, op, "complete_request", p, &r); err != nil {
		return arenero.Completion{}, err
	}
	if len(r.Matches) > maxMatches {
		r.Matches = r.Matches[:maxMatches]
	}
	c := arenero.Completion{Matches: r.Matches, Start: byteOffset(code, r.Start), End: byteOffset(code, r.End)}
	c.Start = min(c.Start, c.End)
	return c, nil
}

func (k *kernel) inspect(ctx context.Context, code string, cursor int) (map[string]string, error) {
	const op = "inspect"
	p, err := k.at(op, code, cursor)
	if err != nil {
		return nil, err
	}
	var r struct {
		Found bool                       `json:"found"`
		Data  map[string]json.RawMessage `json:"data"`
	}
	if err := k.ask(ctx, op, "inspect_request", p, &r); err != nil {
		return nil, err
	}
	if !r.Found {
		return map[string]string{}, nil
	}
	mime, _ := bundle(r.Data)
	return mime, nil
}

// ctxError says why ctx ended.
func ctxError(ctx context.Context, op, id string) error {
	code := arenero.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = arenero.Timeout
	}
	return arenero.Errorf(code, op, id, "%w", context.Cause(ctx))
}
