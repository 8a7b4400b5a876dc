package jupyter

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

func bash(t *testing.T) (*Manager, func(code string) outcome) {
	t.Helper()
	m := bareManager(t, nil)
	start(t, m, arenero.KernelRequest{Name: "sh", Language: "bash"})
	return m, func(code string) outcome {
		t.Helper()
		return do(t, m, arenero.Execute{Kernel: "sh", Code: code})
	}
}

func TestBash(t *testing.T) {
	_, run := bash(t)
	for _, c := range []struct {
		code, stdout, stderr string
		status               int
	}{
		{"x=5; f() { echo f$1; }; echo hi; echo err >&2", "hi\n", "err\n", 0},
		{"echo $x; f 1; false", "5\nf1\n", "", 1},
		{"(exit 42)", "", "", 42},
		{"read y; echo \"$? <$y>\"", "1 <>\n", "", 0},
		{"cat", "", "", 0},
		{`printf '\xff\x00'; printf 'no newline'`, "\xff\x00no newline", "", 0},
		{"for i in 1 2; do\n  echo $i\ndone | tac", "2\n1\n", "", 0},
		{"cat <<'X'\nheredoc $x\nX", "heredoc $x\n", "", 0},
		{"echo 'un ! marked' \"!\"", "un ! marked !\n", "", 0},
		{"cd /tmp", "", "", 0},
		{"cd /; exit 3", "", "", 3},
		{"pwd; echo \"<$x>\"", "/tmp\n<>\n", "", 0}, // a fresh bash, where the last cell began
		{"set -e; false; echo no", "", "", 1},
		{"kill -9 $$", "", "", 137},
		{"break; continue; return 4", "", "", 4},
		{"(exec 2>&1; echo e >&2)", "e\n", "", 0},
		{"# nothing", "", "", 0},
		{"true &", "", "", 0},
		{"printf 'é€😀'", "é€😀", "", 0},
	} {
		o := run(c.code)
		if c.code == "break; continue; return 4" {
			o.stderr = "" // bash says that there is no loop
		}
		if o.stdout != c.stdout || o.stderr != c.stderr || o.end.ExitCode != c.status || o.end.Reason != arenero.Exited || o.err != nil {
			t.Errorf("%s: stdout %q, stderr %q, %+v %v", c.code, o.stdout, o.stderr, o.end, o.err)
		}
	}
	if o := run("nosuchcommand"); o.end.ExitCode != 127 || !strings.Contains(o.stderr, "command not found") {
		t.Errorf("unknown command: %+v", o)
	}
	if o := run("if"); o.end.ExitCode != 2 && o.end.ExitCode != 1 || !strings.Contains(o.stderr, "syntax error") {
		t.Errorf("syntax: %+v", o)
	}
	if o := run("yes | head -c 20000000"); len(o.stdout) != 20000000 {
		t.Errorf("%d bytes", len(o.stdout))
	}
	if o := run("echo one; echo two >&2; echo $(ls /proc/self/fd | wc -l)"); o.stdout != "one\n4\n" {
		t.Errorf("a child sees more descriptors than its own: %q", o.stdout)
	}
}

func TestBashScript(t *testing.T) {
	m, run := bash(t)
	run("v=kept")
	o := do(t, m, arenero.Execute{
		Kernel: "sh", Code: "#!/bin/bash\necho \"$0|$1|$2|$#|$v\"; read l; echo \"$l\"; cat; echo $LINENO; exit 9",
		Script: &arenero.Script{File: "it's.sh", Args: []string{"a'b", "$(id) \"q\""}, Stdin: []byte("line\nrest\n")},
	})
	if want := "it's.sh|a'b|$(id) \"q\"|2|\nline\nrest\n2\n"; o.stdout != want || o.end.ExitCode != 9 || o.stderr != "" {
		t.Errorf("got %q, want %q; %q %+v", o.stdout, want, o.stderr, o.end)
	}
	o = do(t, m, arenero.Execute{Kernel: "sh", Code: "echo 1\nnope", Script: &arenero.Script{File: "b.sh"}})
	if o.stdout != "1\n" || !strings.HasPrefix(o.stderr, "b.sh: line 2: nope") || o.end.ExitCode != 127 {
		t.Errorf("got %q %q %+v", o.stdout, o.stderr, o.end)
	}
	long := "#!/bin/bash\n" + strings.Repeat("# a long script\n", 20_000) + "echo \"$0 $1 $LINENO\"; cat"
	o = do(t, m, arenero.Execute{Kernel: "sh", Code: long, Script: &arenero.Script{File: "long.sh", Args: []string{"x"}, Stdin: []byte("in")}})
	if o.stdout != "long.sh x 20002\nin" {
		t.Errorf("a long script: %q %q", o.stdout, o.stderr)
	}
	if o = run("echo $v"); o.stdout != "kept\n" {
		t.Errorf("after: %q", o.stdout)
	}
}

func TestBashInterruptAndTimeout(t *testing.T) {
	m, run := bash(t)
	run("v=kept; g() { while :; do :; done; echo no; }")
	for _, c := range []string{"sleep 60; echo no", "g; echo no", "while :; do sleep 0.1; done"} {
		o := do(t, m, arenero.Execute{Kernel: "sh", Code: "echo part; " + c, Timeout: time.Second})
		if o.end.Reason != arenero.TimedOut || o.end.ExitCode != 124 || o.stdout != "part\n" {
			t.Errorf("%s: %q %q %+v", c, o.stdout, o.stderr, o.end)
		}
	}
	if o := run("echo $v"); o.stdout != "kept\n" {
		t.Errorf("after: %q", o.stdout)
	}
	o := do(t, m, arenero.Execute{Kernel: "sh", Code: "trap '' INT; while :; do sleep 0.1; done", Timeout: 500 * time.Millisecond})
	if o.end.Reason != arenero.TimedOut {
		t.Errorf("stubborn: %+v", o.end)
	}
}

func TestBashEnvironmentAndReseed(t *testing.T) {
	m, run := bash(t)
	o := do(t, m, arenero.Execute{Kernel: "sh", Code: "echo $A; sh -c 'echo $A'", Env: map[string]string{"A": "b 'c'", "bad name": "x"}})
	if o.stdout != "b 'c'\nb 'c'\n" {
		t.Errorf("got %q %q", o.stdout, o.stderr)
	}
	if o = run("echo \"<$A>\""); o.stdout != "<>\n" {
		t.Errorf("after: %q", o.stdout)
	}
	count := o.end.ExecutionCount
	dir := t.TempDir()
	var draws []string
	for i := range 2 {
		run("RANDOM=1")
		count++
		seed := Seed{Entropy: bytes.Repeat([]byte{byte(i)}, 32), Env: map[string]string{"FRESH": "it's\n$x", "no-name": ""}, Dir: dir}
		if err := m.Reseed(t.Context(), seed); err != nil {
			t.Fatal(err)
		}
		o = run("echo $RANDOM$RANDOM")
		if count++; o.end.ExecutionCount != count {
			t.Errorf("count %d, want %d", o.end.ExecutionCount, count)
		}
		draws = append(draws, o.stdout)
	}
	if draws[0] == draws[1] {
		t.Errorf("the same numbers: %q", draws)
	}
	if o = run("pwd; sh -c 'echo \"$FRESH\"'"); o.stdout != dir+"\nit's\n$x\n" {
		t.Errorf("got %q", o.stdout)
	}
}

func TestBashCompleteAndInspect(t *testing.T) {
	m, run := bash(t)
	run("my_function() { echo body; }; my_variable=1")
	for in, want := range map[string]string{"my_fun": "my_function", "x=1; my_fun": "my_function", "echo é $my_v": "$my_variable", "ls /etc/host": "/etc/hosts"} {
		c, err := m.Complete(t.Context(), "sh", in, len(in))
		if err != nil || !slices.Contains(c.Matches, want) || c.End != len(in) || !strings.HasPrefix(want, in[c.Start:]) {
			t.Errorf("%s: %+v %v", in, c, err)
		}
	}
	i, err := m.Inspect(t.Context(), "sh", "my_function a", 3)
	if err != nil || !strings.Contains(i["text/plain"], "echo body") {
		t.Errorf("%q %v", i, err)
	}
	if i, err = m.Inspect(t.Context(), "sh", "nothing_known", 3); err != nil || len(i) != 0 {
		t.Errorf("%q %v", i, err)
	}
	if o := run("echo $my_variable"); o.stdout != "1\n" {
		t.Errorf("after: %q", o.stdout)
	}
}
