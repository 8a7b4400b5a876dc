package jupyter

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arenero/arenero"
)

func script(t *testing.T, m *Manager, c string, s arenero.Script) outcome {
	t.Helper()
	if s.File == "" {
		s.File = "job.py"
	}
	return do(t, m, arenero.Execute{Code: c, Script: &s})
}

func TestScript(t *testing.T) {
	m := manager(t)
	o := script(t, m, `
import sys, os
print(__name__, __file__, sys.argv)
print(repr(input("name? ")), sys.stdin.readline(), sys.stdin.read().encode("utf-8", "surrogateescape"))
1 + 1
import __main__
print(__main__.__name__, __main__.x if hasattr(__main__, "x") else "no x", sorted(k for k in globals() if not k.startswith("__")))
`, arenero.Script{File: "/some/where/job.py", Args: []string{"a b", "--c"}, Stdin: []byte("Ada\nsecond\n\xff\x00rest")})
	want := "__main__ /some/where/job.py ['/some/where/job.py', 'a b', '--c']\n" +
		"name? 'Ada' second\n b'\\xff\\x00rest'\n" +
		"__main__ no x ['os', 'sys']\n"
	if o.stdout != want || len(o.displays) != 0 || o.end.Reason != arenero.Exited || o.end.ExitCode != 0 || o.stderr != "" {
		t.Errorf("got %q, want %q; %+v", o.stdout, want, o)
	}
	o = code(t, m, "import sys, builtins; sorted(globals()), sys.argv[0].endswith('job.py'), '/some/where' in sys.path, __name__, sys.stdin.read(), hasattr(builtins, 'quit')")
	got := strings.Join(strings.Fields(o.main()), " ")
	if strings.Contains(got, "'os'") || !strings.HasSuffix(got, "False, False, '__main__', '', False)") {
		t.Errorf("not cleaned up: %s", got)
	}
	if o.end.ExecutionCount != 1 {
		t.Errorf("a script counted: %d", o.end.ExecutionCount)
	}
}

func TestScriptEnds(t *testing.T) {
	m := manager(t)
	for c, want := range map[string]int{
		"import sys; sys.exit(7)": 7, "exit(3)": 3, "quit()": 0, "raise SystemExit": 0, "import sys; sys.exit('no')": 1, "pass": 0,
	} {
		if o := script(t, m, c, arenero.Script{}); o.end.Reason != arenero.Exited || o.end.ExitCode != want || o.err != nil {
			t.Errorf("%s: %+v %+v", c, o.end, o.err)
		}
	}
	o := script(t, m, "# one\ndef f():\n    raise ValueError('boom')\n\nf()\n", arenero.Script{File: "calc.py"})
	if o.err == nil || o.err.Name != "ValueError" || o.end.ExitCode != 1 || o.end.Reason != arenero.RaisedError {
		t.Fatalf("got %+v %+v", o.err, o.end)
	}
	tb := strings.Join(o.err.Traceback, "\n")
	if !strings.Contains(tb, "calc.py") || !strings.Contains(tb, "raise") || strings.Contains(tb, "_arenero") {
		t.Errorf("traceback %s", tb)
	}
	for _, line := range []string{"calc.py:5", "calc.py:3"} {
		if !strings.Contains(tb, line) {
			t.Errorf("no %s in %s", line, tb)
		}
	}
	if o = script(t, m, "x = 1\ny = (\n", arenero.Script{File: "bad.py"}); o.err == nil || o.err.Name != "SyntaxError" ||
		!strings.Contains(strings.Join(o.err.Traceback, "\n"), "bad.py") {
		t.Errorf("syntax: %+v", o.err)
	}
	if o = script(t, m, "input()", arenero.Script{}); o.err == nil || o.err.Name != "EOFError" {
		t.Errorf("empty stdin: %+v", o.err)
	}
	if o = script(t, m, "raise OSError(28, 'full')", arenero.Script{}); o.end.Reason != arenero.DiskFull {
		t.Errorf("full: %+v", o.end)
	}
	if o = code(t, m, "1"); o.main() != "1" {
		t.Errorf("after: %+v", o)
	}
}

func TestScriptShowsPictures(t *testing.T) {
	m := manager(t)
	dir := m.cfg.Workdir()
	if err := os.WriteFile(filepath.Join(dir, "helper.py"), []byte("value = 41\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := script(t, m, `
import pickle, helper
from dataclasses import dataclass
@dataclass
class P:
    x: int
assert pickle.loads(pickle.dumps(P(3))) == P(3)
import matplotlib.pyplot as plt
plt.plot([1, 2], [3, 4])
plt.show()
display("shown")
helper.value + 1
print(helper.value)
`, arenero.Script{File: filepath.Join(dir, "job.py")})
	if o.err != nil || o.stdout != "41\n" || len(o.displays) != 2 || o.displays[0].MIME["image/png"] == "" || o.displays[0].Chart == nil {
		t.Errorf("got %+v %+v", o, o.err)
	}
}

func TestReseed(t *testing.T) {
	m := manager(t)
	code(t, m, "import random, numpy as np, uuid, tempfile, ssl, os\nimport numpy.random")
	state := "sorted(k for k in globals() if k not in ('state',)), len(In), list(Out), _, __, _i"
	code(t, m, "7")
	draw := func() string {
		return do(t, m, arenero.Execute{Silent: true, Code: "print(random.random(), np.random.rand(), uuid.uuid1().node, random.choice(range(10**9)), next(tempfile._get_candidate_names()))"}).stdout
	}
	same := func() { do(t, m, arenero.Execute{Silent: true, Code: "random.seed(1); np.random.seed(1)"}) }
	before := code(t, m, state).main()
	same()
	first := draw()
	same()
	dir := t.TempDir()
	seed := Seed{Entropy: bytes.Repeat([]byte{1}, 32), Env: map[string]string{"FRESH": "yes", "TZ": "Asia/Tokyo"}, Dir: dir}
	if err := m.Reseed(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	second := draw()
	same()
	if err := m.Reseed(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	third := draw()
	for i, a := range strings.Fields(first) {
		if i == 2 {
			continue // the node is the machine's
		}
		b, c := strings.Fields(second)[i], strings.Fields(third)[i]
		if a == b || b == c || a == c {
			t.Errorf("number %d is not fresh: %s %s %s", i, a, b, c)
		}
	}
	o := code(t, m, "import time; print(os.environ['FRESH'], os.getcwd(), time.tzname[0])")
	if o.stdout != "yes "+dir+" JST\n" || o.end.ExecutionCount != 4 {
		t.Errorf("got %q, count %d", o.stdout, o.end.ExecutionCount)
	}
	if m.List()[0].Dir != dir {
		t.Errorf("dir %q", m.List()[0].Dir)
	}
	after := code(t, m, state).main()
	// Only what these cells themselves added to the history may differ.
	if a, b := names(before), names(after); a != b {
		t.Errorf("names before %s, after %s", a, b)
	}
	if err := m.Reseed(t.Context(), Seed{Entropy: []byte("short")}); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("little entropy: %v", err)
	}
}

// names is the list of globals without IPython's history of cells and "time".
func names(s string) string {
	s, _, _ = strings.Cut(s, "]")
	var out []string
	for n := range strings.SplitSeq(s, ",") {
		n = strings.Trim(n, " '([\n")
		if strings.TrimLeft(n, "_i0123456789") != "" && n != "time" {
			out = append(out, n)
		}
	}
	return strings.Join(out, " ")
}

func TestReseedIsInvisibleAtOnce(t *testing.T) {
	m := manager(t)
	seed := Seed{Entropy: bytes.Repeat([]byte{2}, 32)}
	if err := m.Reseed(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	o := code(t, m, "print([k for k in globals() if 'arenero' in k], len(In), get_ipython().execution_count)")
	if o.stdout != "[] 2 1\n" || o.end.ExecutionCount != 1 {
		t.Errorf("got %q %+v", o.stdout, o.end)
	}
}
