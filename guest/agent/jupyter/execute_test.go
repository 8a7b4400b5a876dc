package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

func TestExecute(t *testing.T) {
	m := manager(t)
	o := code(t, m, "x = 20\nx + 1")
	if o.main() != "21" || o.end.Reason != arenero.Exited || o.end.ExitCode != 0 || o.end.ExecutionCount != 1 {
		t.Errorf("got %+v", o)
	}
	if o = code(t, m, "x * 2"); o.main() != "40" || o.end.ExecutionCount != 2 {
		t.Errorf("state is not kept: %+v", o)
	}
	if o.end.Duration <= 0 {
		t.Error("no duration")
	}
	// A silent cell leaves no count, and shows no value.
	if o = do(t, m, arenero.Execute{Code: "x + 1", Silent: true}); len(o.displays) != 0 {
		t.Errorf("silent: %+v", o)
	}
	if o = code(t, m, "x"); o.end.ExecutionCount != 3 {
		t.Errorf("count %d after a silent cell, want 3", o.end.ExecutionCount)
	}
	if i := m.List()[0]; i.Count != 3 || i.State != "idle" || i.Language != "python" || i.Spec != "python3" || i.PID == 0 {
		t.Errorf("info %+v", i)
	}
}

func TestOutputInOrder(t *testing.T) {
	m := manager(t)
	o := code(t, m, `
import sys
from IPython.display import display
for i in range(3):
    print("o%d" % i)
    print("e%d" % i, file=sys.stderr)
display("D")
print("last")`)
	got := strings.Join(o.order, "")
	if want := "out:o0\nerr:e0\nout:o1\nerr:e1\nout:o2\nerr:e2\ndisplayout:last\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for range 5 { // what a child writes comes before what is printed after it
		o = code(t, m, "import os\nprint('a')\nos.system('echo b')\nprint('c')")
		if o.stdout != "a\nb\nc\n" {
			t.Errorf("got %q", o.stdout)
		}
	}
	// Output of a child that comes at the very end belongs to the cell.
	if o = code(t, m, "os.system('seq 1 20000'); None"); strings.Count(o.stdout, "\n") != 20000 {
		t.Errorf("%d lines of a child, want 20000", strings.Count(o.stdout, "\n"))
	}
	// A child that writes for ever does not hold up what comes after.
	begin := time.Now()
	o = code(t, m, "import subprocess\np = subprocess.Popen(['yes'])\nfor i in range(20): print('mine')")
	if o.end.Reason != arenero.Exited || strings.Count(o.stdout, "mine") != 20 || time.Since(begin) > 20*time.Second {
		t.Errorf("a child that writes for ever: %+v", o.end)
	}
	if o = code(t, m, "p.kill(); print('killed')"); !strings.Contains(o.stdout, "killed") {
		t.Errorf("then: %+v", o.end)
	}
}

func TestBytesAreKept(t *testing.T) {
	m := manager(t)
	for c, want := range map[string]string{
		`import os; os.write(1, b"\xff\x00\xfe\n"); None`:        "\xff\x00\xfe\n",
		`import sys; sys.stdout.buffer.write(b"\xe2\x82"); None`: "\xe2\x82",
		`print("\udcfd\u20ac\U0001F600\"\\\x00")`:                "\xfd€😀\"\\\x00\n",
		`print("\ud800")`: "\uFFFD\uFFFD\uFFFD\n",
		`import os; [os.write(1, bytes([b])) for b in "€😀é".encode()]; None`:   "€😀é",
		`import subprocess; subprocess.run(["printf", "\\200\\377"]); None`:    "\x80\xff",
		`print("a\r\nb\x1b[31mred\x1b[0m")`:                                    "a\r\nb\x1b[31mred\x1b[0m\n",
		`import sys; sys.stdout.write("no newline"); sys.stdout.flush(); None`: "no newline",
	} {
		if o := code(t, m, c); o.stdout != want {
			t.Errorf("%s: got %q, want %q", c, o.stdout, want)
		}
	}
}

func TestMIME(t *testing.T) {
	m := manager(t)
	want := map[string]string{
		"text/plain": "plain", "text/html": "<b>h</b>", "text/markdown": "# m", "text/latex": "$x$",
		"image/png": "iVBORw0KGgo=", "image/jpeg": "/9j/", "image/svg+xml": "<svg/>",
		"application/javascript": "alert(1)", "application/pdf": "JVBERi0=",
	}
	in, _ := json.Marshal(want)
	o := code(t, m, fmt.Sprintf(`
from IPython.display import display
d = %s
d["application/json"] = {"a": [1, None, "x"]}
d["application/vnd.vega.v5+json"] = {"m": 1}
display(d, raw=True)
display(d, raw=True)
None`, in))
	want["application/json"] = `{"a": [1, null, "x"]}`
	want["application/vnd.vega.v5+json"] = `{"m": 1}`
	if len(o.displays) != 2 {
		t.Fatalf("%d displays", len(o.displays))
	}
	for kind, text := range want {
		got := o.displays[0].MIME[kind]
		if strings.HasSuffix(kind, "json") {
			got, text = strings.ReplaceAll(got, " ", ""), strings.ReplaceAll(text, " ", "")
		}
		if got != text {
			t.Errorf("%s: got %q, want %q", kind, got, text)
		}
	}
	if o.displays[0].Main || len(o.displays[0].MIME) != len(want) {
		t.Errorf("got %+v", o.displays[0])
	}
	o = code(t, m, "import pandas as pd; pd.DataFrame({'a': [1, 2]})")
	if len(o.displays) != 1 || !o.displays[0].Main || !strings.Contains(o.displays[0].MIME["text/html"], "<table") ||
		!strings.Contains(o.displays[0].MIME["text/plain"], "a") {
		t.Errorf("a table: %+v", o.displays)
	}
}

func TestUpdateAndClear(t *testing.T) {
	m := manager(t)
	o := code(t, m, `
from IPython.display import display, clear_output
h = display("one", display_id="the-id")
h.update("two")
clear_output(wait=True)
clear_output()`)
	if len(o.displays) != 1 || o.displays[0].ID != "the-id" {
		t.Errorf("displays %+v", o.displays)
	}
	if len(o.updates) != 1 || o.updates[0].ID != "the-id" || o.updates[0].MIME["text/plain"] != "'two'" {
		t.Errorf("updates %+v", o.updates)
	}
	if o.clears != 2 {
		t.Errorf("%d clears", o.clears)
	}
}

func TestErrors(t *testing.T) {
	m := manager(t)
	o := code(t, m, "def f():\n    return 1/0\nf()")
	if o.err == nil || o.err.Name != "ZeroDivisionError" || o.err.Value != "division by zero" {
		t.Fatalf("got %+v", o.err)
	}
	if tb := strings.Join(o.err.Traceback, "\n"); !strings.Contains(tb, "\x1b[") || !strings.Contains(tb, "1") {
		t.Errorf("traceback %q", tb)
	}
	if o.end.Reason != arenero.RaisedError || o.end.ExitCode != 1 {
		t.Errorf("end %+v", o.end)
	}
	for c, want := range map[string]arenero.ExitReason{
		"x = (":                                                  arenero.RaisedError,
		"raise OSError(28, 'full')":                              arenero.DiskFull,
		"raise OSError(122, 'quota')":                            arenero.DiskFull,
		"raise OSError(2, 'x')":                                  arenero.RaisedError,
		"raise BlockingIOError(11, '')":                          arenero.ProcessLimit,
		`raise RuntimeError("can't start new thread")`:           arenero.ProcessLimit,
		"raise MemoryError":                                      arenero.OutOfMemory,
		"import numpy; numpy.zeros(1 << 50)":                     arenero.OutOfMemory,
		"class E(Exception):\n  def __str__(self): 1/0\nraise E": arenero.RaisedError,
		"open('/dev/full', 'w', 1).write('x\\n')":                arenero.DiskFull,
		"print('\\0')\nraise KeyboardInterrupt":                  arenero.RaisedError,
		"raise ValueError('\\udc80')":                            arenero.RaisedError,
	} {
		o := code(t, m, c)
		if o.end.Reason != want || o.end.ExitCode != 1 || o.err == nil {
			t.Errorf("%s: %+v %+v", c, o.end, o.err)
		}
	}
	if o := code(t, m, "1"); o.main() != "1" {
		t.Errorf("after errors: %+v", o)
	}
}

func TestExit(t *testing.T) {
	m := manager(t)
	code(t, m, "kept = 'kept'\nimport sys")
	for c, want := range map[string]int{
		"sys.exit(7)": 7, "sys.exit()": 0, "sys.exit(None)": 0, "sys.exit(257)": 1, "sys.exit(-1)": 255,
		"sys.exit(True)": 1, "exit(3)": 3, "quit(4)": 4, "exit()": 0, "exit": 0, "raise SystemExit(9)": 9,
		"sys.exit('7')": 1, "sys.exit('bye')": 1, "sys.exit((1, 2))": 1,
	} {
		o := code(t, m, c)
		if o.end.Reason != arenero.Exited || o.end.ExitCode != want || o.err != nil {
			t.Errorf("%s: %+v %+v", c, o.end, o.err)
		}
		if says := map[string]string{"sys.exit('7')": "7\n", "sys.exit('bye')": "bye\n", "sys.exit((1, 2))": "(1, 2)\n"}[c]; o.stderr != says {
			t.Errorf("%s: stderr %q, want %q", c, o.stderr, says)
		}
	}
	if o := code(t, m, "kept"); o.main() != "'kept'" {
		t.Errorf("the kernel did not outlive exit: %+v", o)
	}
}

func TestInput(t *testing.T) {
	m := manager(t)
	o := code(t, m, "input('? ')")
	if o.err == nil || o.err.Name != "StdinNotImplementedError" {
		t.Errorf("refused: %+v", o.err)
	}
	if o = code(t, m, "import sys; sys.stdin.read()"); o.main() != "''" {
		t.Errorf("stdin is not empty: %+v", o)
	}
	answers := make(chan string, 3)
	var got outcome
	run := func(c string) {
		got = outcome{}
		err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: c, AllowStdin: true, Timeout: time.Minute}, answers,
			func(e Event) error { got.take(e); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	answers <- "Ada"
	answers <- "sécret"
	run("import getpass\na = input('name? ')\nb = getpass.getpass('pass? ')\na, b")
	if got.main() != "('Ada', 'sécret')" {
		t.Errorf("answered: %+v", got)
	}
	if want := []arenero.InputRequest{{Prompt: "name? "}, {Prompt: "pass? ", Password: true}}; !slices.Equal(got.inputs, want) {
		t.Errorf("asked %+v", got.inputs)
	}
	close(answers)
	if run("input()"); got.err == nil || got.err.Name != "EOFError" {
		t.Errorf("end of input: %+v", got)
	}
}

func TestCellEnvironment(t *testing.T) {
	m := manager(t)
	const c = "import os; os.environ.get('CELL'), os.environ.get('GREETING')"
	if o := do(t, m, arenero.Execute{Code: c, Env: map[string]string{"CELL": "1", "GREETING": "other"}}); o.main() != "('1', 'other')" {
		t.Errorf("got %s", o.main())
	}
	if o := code(t, m, c); o.main() != "(None, 'hello')" {
		t.Errorf("after: %s", o.main())
	}
}

func TestCellsWaitTheirTurn(t *testing.T) {
	m := manager(t)
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			o := do(t, m, arenero.Execute{Code: fmt.Sprintf("import time; time.sleep(0.15); print(%d)", i)})
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
			if o.stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("cell %d got %q", i, o.stdout)
			}
		})
		time.Sleep(20 * time.Millisecond)
	}
	wg.Wait()
	if !slices.IsSorted(order) {
		t.Errorf("order %v", order)
	}
}

func TestReaderFails(t *testing.T) {
	m := manager(t)
	gone := errors.New("gone")
	err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: "y = 5\nprint('x', flush=True)\nimport time\ntime.sleep(60)"}, nil,
		func(Event) error { return gone })
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if o := code(t, m, "y"); o.main() != "5" {
		t.Errorf("after: %+v", o)
	}
}

func TestCancel(t *testing.T) {
	m := manager(t)
	ctx, cancel := context.WithCancel(t.Context())
	var o outcome
	err := m.Execute(ctx, arenero.Execute{Kernel: "python", Code: "y = 6\nprint('go', flush=True)\nimport time\ntime.sleep(60)"}, nil,
		func(e Event) error {
			o.take(e)
			cancel()
			return nil
		})
	if err != nil || o.end.Reason != arenero.Cancelled || o.err != nil {
		t.Errorf("%v %+v", err, o)
	}
	if o := code(t, m, "y"); o.main() != "6" {
		t.Errorf("after: %+v", o)
	}
	// One that waits for its turn leaves the queue.
	busy := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { do(t, m, arenero.Execute{Code: "import time; time.sleep(1)"}); close(busy) })
	time.Sleep(100 * time.Millisecond)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Execute(ctx, arenero.Execute{Kernel: "python", Code: "1"}, nil, nil); arenero.CodeOf(err) != arenero.Timeout {
		t.Errorf("in the queue: %v", err)
	}
	wg.Wait()
}

func TestRefusals(t *testing.T) {
	m := manager(t)
	on := func(Event) error { return nil }
	for name, c := range map[string]struct {
		e    arenero.Execute
		want arenero.Code
	}{
		"unknown":   {arenero.Execute{Kernel: "other", Code: "1"}, arenero.NotFound},
		"too large": {arenero.Execute{Kernel: "python", Code: strings.Repeat("#", 50<<20)}, arenero.TooLarge},
		"NUL":       {arenero.Execute{Kernel: "python", Code: "x = '\x00'"}, arenero.Invalid},
		"not UTF-8": {arenero.Execute{Kernel: "python", Code: "\xff"}, arenero.Invalid},
	} {
		if err := m.Execute(t.Context(), c.e, nil, on); arenero.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if o := code(t, m, "#"+strings.Repeat("x", 10<<20)+"\n5"); o.main() != "5" {
		t.Errorf("10 MiB of code: %+v", o.end)
	}
}
