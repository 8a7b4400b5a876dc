package jupyter

import (
	"testing"

	"github.com/arenero/arenero"
)

func TestFirst(t *testing.T) {
	m := manager(t)
	o := code(t, m, "1+1")
	if o.main() != "2" || o.end.Reason != arenero.Exited {
		t.Errorf("%+v", o)
	}
	t.Logf("%+v", o.end)
	for _, c := range []string{"print('x')", "import sys; sys.exit(7)", "exit(3)", "1/0", "import os; os.system('echo sub; echo e >&2'); print('after')", "sys.exit('bye')",
		"import matplotlib.pyplot as plt\nplt.plot([1,2],[3,4],label='l'); plt.xlabel('Time (s)'); plt.show()", "input('?')", "import os; os.write(1,b'\\xff\\xfe'); print('\\udcfd')", "sys.stdout.buffer.write(b'\\xe9')"} {
		o := code(t, m, c)
		t.Logf("%q: %q out=%q err=%q %+v end=%+v", c, o.order, o.stdout, o.stderr, o.err, o.end)
		for _, d := range o.displays {
			t.Logf("  %v %s", keys(d.MIME), d.Chart)
		}
	}
	o = do(t, m, arenero.Execute{Code: "import sys\nprint(__name__, __file__, sys.argv, input(), sys.stdin.read())\n3\ndef f():\n  raise ValueError('x')\nf()", Script: &arenero.Script{File: "/tmp/a.py", Args: []string{"b"}, Stdin: []byte("l1\nl2\n")}})
	t.Logf("%+v %+v", o, o.err)
	o = do(t, m, arenero.Execute{Code: "import sys\nsys.exit(7)", Script: &arenero.Script{File: "/tmp/a.py"}})
	t.Logf("%+v %+v", o, o.err)
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return
}
