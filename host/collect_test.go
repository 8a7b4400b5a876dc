package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

func TestRingKeepsTheLastBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		r := ring{max: rnd.IntN(50) + 1}
		var all []byte
		for range rnd.IntN(30) {
			p := make([]byte, rnd.IntN(80))
			for i := range p {
				p[i] = byte('a' + rnd.IntN(26))
			}
			all = append(all, p...)
			r.write(p)
			want := all[max(0, len(all)-r.max):]
			if got := r.text(); got != string(want) || r.dropped != int64(len(all)-len(want)) {
				t.Fatalf("max %d: %q dropped %d, want %q dropped %d", r.max, got, r.dropped, want, len(all)-len(want))
			}
			if last, ok := r.last(); ok && last != want[len(want)-1] {
				t.Fatalf("last is %q", last)
			}
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add([]byte("aé\xff漢"), uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, p []byte, limit, step uint8) {
		r := ring{max: int(limit)}
		for chunk := range chunks(p, int(step)+1) {
			r.write(chunk)
		}
		if s := r.text(); !utf8.ValidString(s) {
			t.Errorf("%q is not UTF-8", s)
		}
		if int64(len(r.buf))+r.dropped != int64(len(p)) {
			t.Errorf("%d kept and %d dropped of %d", len(r.buf), r.dropped, len(p))
		}
	})
}

func chunks(p []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(p) > 0 {
			k := min(n, len(p))
			if !yield(p[:k]) {
				return
			}
			p = p[k:]
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("aé漢😀\xff\xf0\x9f"), uint8(0))
	f.Fuzz(func(t *testing.T, p []byte, step uint8) {
		var text Text
		var out strings.Builder
		for chunk := range chunks(append([]byte(nil), p...), int(step)+1) {
			s := text.Next(chunk)
			if !utf8.ValidString(s) {
				t.Errorf("%q is not UTF-8", s)
			}
			out.WriteString(s)
		}
		out.WriteString(text.Flush())
		if utf8.Valid(p) && out.String() != string(p) {
			t.Errorf("%q became %q", p, out.String())
		}
	})
}

func TestCollectorOrderAndText(t *testing.T) {
	c := NewCollector(1 << 20)
	for _, e := range []arenero.KernelEvent{
		{Stdout: "one\n"},
		{Stderr: "two"},
		{Display: &arenero.Display{MIME: map[string]string{"text/plain": "42"}, IsMain: true}},
		{Stdout: "bad \xff utf8 \x00\n"},
		{Error: &arenero.RunError{Name: "ValueError", Value: "no", Traceback: []string{"\x1b[31mValueError\x1b[0m: no"}}},
		{End: &arenero.KernelEnd{Reason: arenero.RaisedError, ExecutionCount: 3, Duration: 1500 * time.Microsecond}},
	} {
		c.Kernel(e)
	}
	got := c.Result()
	want := arenero.Result{
		ExitCode: 1, ExitReason: arenero.RaisedError, ExecutionCount: 3, Duration: arenero.Millis(1500 * time.Microsecond),
		Stdout: "one\nbad \ufffd utf8 \x00\n", Stderr: "two",
		Output:  "one\ntwo\n42\nbad \ufffd utf8 \x00\nValueError: no\n",
		Results: []arenero.Display{{MIME: map[string]string{"text/plain": "42"}, IsMain: true}},
		Error:   &arenero.RunError{Name: "ValueError", Value: "no", Traceback: []string{"\x1b[31mValueError\x1b[0m: no"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestCollectorResults(t *testing.T) {
	show := func(id, text string) arenero.KernelEvent {
		return arenero.KernelEvent{Display: &arenero.Display{ID: id, MIME: map[string]string{"text/html": text}}}
	}
	texts := func(c *Collector) (out []string) {
		for _, d := range c.Result().Results {
			out = append(out, d.MIME["text/html"])
		}
		return out
	}
	t.Run("update", func(t *testing.T) {
		c := NewCollector(100)
		c.Kernel(show("a", "1"))
		c.Kernel(show("b", "2"))
		c.Kernel(arenero.KernelEvent{Update: &arenero.Display{ID: "a", MIME: map[string]string{"text/html": "3"}}})
		c.Kernel(arenero.KernelEvent{Update: &arenero.Display{ID: "none", MIME: map[string]string{"text/html": "4"}}})
		if d := cmp.Diff([]string{"3", "2"}, texts(c)); d != "" {
			t.Error(d)
		}
	})
	t.Run("clear", func(t *testing.T) {
		c := NewCollector(100)
		c.Kernel(show("", "1"))
		c.Kernel(arenero.KernelEvent{Clear: &arenero.ClearOutput{Wait: true}})
		if len(texts(c)) != 1 {
			t.Error("cleared before the next output")
		}
		c.Kernel(show("", "2"))
		if d := cmp.Diff([]string{"2"}, texts(c)); d != "" {
			t.Error(d)
		}
		c.Kernel(arenero.KernelEvent{Clear: &arenero.ClearOutput{}})
		if got := c.Result().Results; got == nil || len(got) != 0 {
			t.Errorf("results are %v, want an empty list", got)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		c := NewCollector(100)
		for i := range maxResults + 5 {
			c.Kernel(show("", fmt.Sprint(i)))
		}
		big := strings.Repeat("x", int(maxResultBytes))
		c.Kernel(show("", big))
		r := c.Result()
		if len(r.Results) != maxResults || r.Truncated.Results != 6 {
			t.Errorf("%d results, %d dropped", len(r.Results), r.Truncated.Results)
		}
	})
}

func TestExitStatuses(t *testing.T) {
	for _, c := range []struct {
		reason arenero.ExitReason
		code   int
		want   int
	}{
		{arenero.Exited, 0, 0}, {arenero.Exited, 7, 7}, {arenero.RaisedError, 0, 1}, {arenero.TimedOut, 0, 124},
		{arenero.OutOfMemory, 0, 137}, {arenero.KernelDied, 0, 1}, {arenero.WasKilled, 139, 139},
		{arenero.TimedOut, 143, 124}, {arenero.TimedOut, 137, 124}, {arenero.TimedOut, 3, 124},
	} {
		k, cell := NewCollector(10), NewCollector(10)
		k.Process(arenero.ProcessEvent{Exit: &arenero.ProcessExit{Reason: c.reason, Code: c.code, Signal: "SIGTERM"}})
		cell.Kernel(arenero.KernelEvent{End: &arenero.KernelEnd{Reason: c.reason, ExitCode: c.code, Signal: "SIGTERM"}})
		for _, r := range []arenero.Result{k.Result(), cell.Result()} {
			if r.ExitCode != c.want || r.Signal != "SIGTERM" {
				t.Errorf("%s %d: %d by %s, want %d", c.reason, c.code, r.ExitCode, r.Signal, c.want)
			}
		}
	}
}

// 100 MB of print do not grow the daemon by more than a few MiB.
func TestFloodIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := NewCollector(arenero.DefaultLimits().Output)
	line := bytes.Repeat([]byte("all work and no play\n"), 1000)
	total := 0
	for total < 100<<20 {
		c.Process(arenero.ProcessEvent{Stdout: line})
		total += len(line)
	}
	r := c.Result()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 8<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if got := r.Truncated.Stdout + int64(len(r.Stdout)); got != int64(total) {
		t.Errorf("%d bytes told of %d", got, total)
	}
	if r.Output == "" || !strings.HasSuffix(r.Output, "play\n") {
		t.Error("the end is missing")
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(c)
}

func TestStripANSI(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b[0;31mred\x1b[0m":                 "red",
		"\x1b]8;;http://x\x07link\x1b]8;;\x07": "link",
		"plain [31m":                           "plain [31m",
		"\x1b":                                 "\x1b",
	} {
		if got := stripANSI(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
