package jupyter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

// script is a connection that says b and then ends; what is written is dropped.
type scripted struct {
	net.Conn

	r io.Reader
}

func (s *scripted) Read(p []byte) (int, error)      { return s.r.Read(p) }
func (s *scripted) Write(p []byte) (int, error)     { return len(p), nil }
func (s *scripted) Close() error                    { return nil }
func (s *scripted) SetDeadline(time.Time) error     { return nil }
func (s *scripted) SetReadDeadline(time.Time) error { return nil }

func says(b []byte) *zconn {
	c := &scripted{r: bytes.NewReader(b)}
	return &zconn{c: c, r: bufio.NewReader(c)}
}

// frames is the wire form of messages.
func frames(messages ...[][]byte) []byte {
	var b []byte
	for _, m := range messages {
		for i, f := range m {
			flags := byte(flagMore)
			if i == len(m)-1 {
				flags = 0
			}
			b = append(appendFrameHeader(b, flags, len(f)), f...)
		}
	}
	return b
}

func TestFrames(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	big := bytes.Repeat([]byte("x"), 3<<20)
	want := [][][]byte{{[]byte("one")}, {{}, []byte("two"), big}, {bytes.Repeat([]byte("y"), 256)}}
	go func() {
		z := &zconn{c: a, r: bufio.NewReader(a)}
		for _, m := range want {
			z.send(m...)
		}
		a.Close()
	}()
	z := &zconn{c: b, r: bufio.NewReader(b)}
	for _, m := range want {
		got, err := z.recv()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(m, got.frames) {
			t.Errorf("%d frames differ", len(m))
		}
	}
	if _, err := z.recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestFramesTooLarge(t *testing.T) {
	huge := make([]byte, MaxMessage)
	z := says(frames([][]byte{[]byte("head"), huge, []byte("tail")}, [][]byte{[]byte("next")}))
	m, err := z.recv()
	if err != nil || m.dropped != MaxMessage || len(m.frames) != 3 || m.frames[1] != nil || string(m.frames[2]) != "tail" {
		t.Fatalf("%v %d", err, m.dropped)
	}
	if m, err = z.recv(); err != nil || string(m.frames[0]) != "next" {
		t.Errorf("the next one: %v", err)
	}
	for name, b := range map[string][]byte{
		"cut in a header":      {flagLong, 0, 0},
		"cut in a body":        {0, 5, 'a'},
		"unknown flags":        {0x80, 0},
		"command in a message": append(frames([][]byte{{}, {}})[:2], flagCommand, 1, 0),
		"a size past all":      {flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		if m, err := says(b).recv(); err == nil {
			t.Errorf("%s: got %v", name, m)
		}
	}
	// A size is not believed before the bytes are there.
	if n := testing.AllocsPerRun(1, func() { says([]byte{flagLong, 0, 0, 0, 0, 3, 0, 0, 0, 'x'}).recv() }); n > 50 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnquote(t *testing.T) {
	for in, want := range map[string]string{
		`""`: "", `"a"`: "a", ` "a" `: "a", `"\n\t\"\\\/\b\f\r"`: "\n\t\"\\/\b\f\r",
		`"\u20ac"`: "€", `"\ud83d\ude00"`: "😀", `"\udc80\udcff"`: "\x80\xff", `"\ud800"`: "\uFFFD",
		`"\ud800\u0041"`: "\uFFFDA", "\"\xff\xfe\"": "\xff\xfe", `"\u0000"`: "\x00",
	} {
		if got, ok := unquote([]byte(in)); !ok || string(got) != want {
			t.Errorf("%s: got %q %v, want %q", in, got, ok, want)
		}
	}
	for _, in := range []string{``, `"`, `a`, `"\`, `"\"`, `"\u12"`, `"\u12g4"`, `"\x"`, `5`, `null`} {
		if got, ok := unquote([]byte(in)); ok {
			t.Errorf("%s: got %q", in, got)
		}
	}
}

func TestSignature(t *testing.T) {
	s := newSigner("key")
	id, f, err := s.encode("kind", "session", map[string]string{"a": "b"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.decode(zmessage{frames: append([][]byte{[]byte("ident")}, f...)})
	if err != nil || m.kind != "kind" || string(m.content) != `{"a":"b"}` || id == "" {
		t.Errorf("%+v %v", m, err)
	}
	if _, err := newSigner("other").decode(zmessage{frames: f}); !errors.Is(err, errSignature) {
		t.Errorf("another key: %v", err)
	}
	f[5][1] ^= 1
	if _, err := s.decode(zmessage{frames: f}); !errors.Is(err, errSignature) {
		t.Errorf("changed: %v", err)
	}
}

func TestClassify(t *testing.T) {
	exit := 300
	for name, c := range map[string]struct {
		f    failure
		want ending
	}{
		"no numbers": {failure{Name: "OSError", Value: "[Errno 28] No space left on device: 'x'"}, ending{reason: arenero.DiskFull, code: 1, shown: true}},
		"plain exit": {failure{Name: "SystemExit", Value: "5"}, ending{reason: arenero.Exited, code: 5}},
		"text exit":  {failure{Name: "SystemExit", Value: "no"}, ending{reason: arenero.Exited, code: 1, stderr: "no\n"}},
		"none":       {failure{Name: "SystemExit", Value: "None"}, ending{reason: arenero.Exited}},
		"shell":      {failure{Value: "127"}, ending{reason: arenero.Exited, code: 127}},
		"nameless":   {failure{Value: "odd"}, ending{reason: arenero.RaisedError, code: 1, shown: true}},
		"huge status": {failure{Name: "SystemExit", Arenero: struct {
			Exit   *int   `json:"exit"`
			Stderr string `json:"stderr"`
			Errno  int    `json:"errno"`
		}{Exit: &exit}}, ending{reason: arenero.Exited, code: 44}},
	} {
		if got := classify(c.f); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	e := runError(failure{Name: "X", Value: strings.Repeat("é", 1<<20), Traceback: make([]string, 5000)})
	if len(e.Value) > maxErrorText+3 || len(e.Traceback) > maxTraceback+1 {
		t.Errorf("unbounded: %d, %d", len(e.Value), len(e.Traceback))
	}
}

func TestSpecs(t *testing.T) {
	good := `{"argv": ["x", "{connection_file}"], "display_name": "X", "language": "Rust", "interrupt_mode": "message"}`
	s, err := parseSpec("/d", []byte(good))
	if err != nil || s.Language != "rust" || s.Interrupt != "message" || len(s.Argv) != 2 {
		t.Errorf("%+v %v", s, err)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"argv": []}`, `{"argv": [""]}`, `{"argv": "x"}`, `{"argv": ["a\u0000b"]}`, `{"argv": [5]}`} {
		if _, err := parseSpec("/d", []byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	m := bareManager(t, map[string]spec{
		"xeus-python": {Argv: []string{"x"}, Language: "python", Display: "Xeus"},
		"deno":        {Argv: []string{"deno"}, Language: "typescript"},
		"empty":       {},
	})
	for want, name := range map[string]string{"": "python3", "python": "python3", "Python3": "python3", "xeus-python": "xeus-python", "typescript": "deno", "bash": "bash"} {
		if s, err := m.spec(want); err == nil && s.name != name {
			// "" and "python" prefer the spec that is named like the language
			t.Errorf("%q: %s", want, s.name)
		} else if err != nil {
			t.Errorf("%q: %v", want, err)
		}
	}
	var names []string
	for _, s := range m.Specs() {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "bash deno python3 xeus-python" {
		t.Errorf("specs %s", got)
	}
}

func FuzzFrames(f *testing.F) {
	s := newSigner("key")
	_, good, _ := s.encode("stream", "s", map[string]string{"name": "stdout", "text": "x"})
	f.Add(frames(good))
	f.Add(append(greeting(), appendCommand(nil, "READY", appendProperty(nil, "Socket-Type", "ROUTER"))...))
	f.Add([]byte{flagLong | flagMore, 0, 0, 0, 0, 0, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		z := says(b)
		for range 100 {
			m, err := z.recv()
			if err != nil {
				break
			}
			if len(m.frames) > maxFrames {
				t.Fatal("too many frames")
			}
			s.decode(m)
		}
		if z, err := openZMTP(&scripted{r: bytes.NewReader(b)}, "SUB", "id", time.Time{}); err == nil {
			z.recv()
		}
	})
}

// FuzzMessages gives contents of every kind to a running cell, which must neither
// panic nor hand out what it should not.
func FuzzMessages(f *testing.F) {
	for _, c := range []string{
		`{"name":"stdout","text":"a\udc80"}`, `{"data":{"text/plain":"x","application/json":{"a":1}},"transient":{"display_id":"i"}}`,
		`{"ename":"E","evalue":"v","traceback":["a"],"arenero":{"exit":3,"errno":28}}`, `{"status":"error","execution_count":-5}`,
		`{"execution_state":"idle"}`, `{"wait":true}`, `{"prompt":"p","password":true}`, `{"data":{"application/vnd.arenero.chart+json":"{\"type\":\"line\"}"}}`, `5`, `null`, ``,
	} {
		f.Add([]byte(c))
	}
	kinds := []string{"stream", "display_data", "execute_result", "update_display_data", "clear_output", "error", "status", "execute_reply"}
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, kind := range kinds {
			r := &run{s: &session{waiting: map[string]chan message{}}, on: func(e Event) error {
				if len(e.Stdout) > MaxPiece || len(e.Stderr) > MaxPiece {
					t.Error("a piece too large")
				}
				for _, d := range []*Display{e.Display, e.Update} {
					if d != nil && d.Chart != nil && (len(d.Chart) > MaxChart || !json.Valid(d.Chart)) {
						t.Errorf("chart %q", d.Chart)
					}
					if d != nil && len(d.MIME) > maxMIMEs {
						t.Error("too many types")
					}
				}
				return nil
			}}
			r.c = &cell{s: r.s, queue: newQueue()}
			r.handle(message{kind: kind, content: content})
			if r.failed != nil && (r.failed.code < 0 || r.failed.code > 255) {
				t.Errorf("status %d", r.failed.code)
			}
		}
	})
}

func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"argv": ["x"], "env": {"A": "${B}"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSpec("/d", b)
		if err == nil && len(s.Argv) == 0 {
			t.Error("a spec without argv")
		}
	})
}

func FuzzUnquote(f *testing.F) {
	f.Add([]byte(`"a\ud83d\ude00\udc80"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := unquote(b)
		var want string
		if json.Unmarshal(b, &want) != nil {
			return
		}
		if len(bytes.TrimSpace(b)) > 0 && bytes.TrimSpace(b)[0] != '"' {
			return // null
		}
		if !ok {
			t.Fatalf("%q was refused", b)
		}
		// Where nothing is lossy, both agree.
		if !strings.Contains(want, "\uFFFD") && string(got) != want {
			t.Errorf("%q: got %q, want %q", b, got, want)
		}
	})
}
