package jupyter

import (
	"testing"

	"github.com/arenero/arenero"
)

func TestBashFirst(t *testing.T) {
	m := bareManager(t, nil)
	start(t, m, arenero.KernelRequest{Name: "sh", Language: "bash"})
	for _, c := range []string{"x=5; echo hi; echo err >&2", "echo $x; false", "exit 3", "echo new $x; read y; echo $?", "printf '\\xff'", "foo bar", "cd /tmp; pwd", "for i in 1 2 3; do echo $i; done | tac"} {
		o := do(t, m, arenero.Execute{Kernel: "sh", Code: c})
		t.Logf("%q: %q %q %+v %+v", c, o.stdout, o.stderr, o.err, o.end)
	}
	o := do(t, m, arenero.Execute{Kernel: "sh", Code: "#!/bin/sh\necho $0 $1 $#; cat; echo $LINENO; exit 9", Script: &arenero.Script{File: "a.sh", Args: []string{"it's", "b"}, Stdin: []byte("in\n")}})
	t.Logf("%+v", o)
	o = do(t, m, arenero.Execute{Kernel: "sh", Code: "echo $A; env | grep ^A=", Env: map[string]string{"A": "b c"}})
	t.Logf("%+v", o)
	c, err := m.Complete(t.Context(), "sh", "ech", 3)
	t.Log(c, err)
	c, err = m.Complete(t.Context(), "sh", "echo $HO", 8)
	t.Log(c, err)
	i, err := m.Inspect(t.Context(), "sh", "echo", 2)
	t.Log(i, err)
}
