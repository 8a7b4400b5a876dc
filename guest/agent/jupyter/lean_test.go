package jupyter

import (
	"slices"
	"strings"
	"testing"
)

// Nobody here can speak to a debugger, and completion is seldom asked: both are a
// third of a kernel's memory, and must be there all the same for who wants them.
func TestKernelIsLean(t *testing.T) {
	m := manager(t)
	loaded := "import sys; [n for n in ('debugpy', 'jedi') if n in sys.modules]"
	if o := code(t, m, loaded); o.main() != "[]" {
		t.Fatalf("loaded from the start: %s", o.main())
	}
	if o := code(t, m, "import debugpy; debugpy.__name__"); o.main() != "'debugpy'" {
		t.Errorf("import debugpy: %+v", o)
	}
	// Nothing of this has run: only the reader of source knows what text is.
	in := "text = str(1)\ntext.startsw"
	c, err := m.Complete(t.Context(), "python", in, len(in))
	if err != nil || !slices.ContainsFunc(c.Matches, func(s string) bool { return strings.HasSuffix(s, "startswith") }) {
		t.Errorf("complete %q: %+v, %v", in, c, err)
	}
	if o := code(t, m, "'jedi' in sys.modules, get_ipython().Completer.use_jedi"); o.main() != "(True, True)" {
		t.Errorf("after completion: %s", o.main())
	}
}

// What a kernel sees of its start is what `-m ipykernel_launcher` shows.
func TestLeanStartLooksTheSame(t *testing.T) {
	m := manager(t)
	o := code(t, m, "import os, sys; os.getcwd() in sys.path, [p for p in sys.path if 'profile_default' in p], os.path.basename(sys.argv[0])")
	if o.main() != "(True, [], 'ipykernel_launcher.py')" {
		t.Errorf("got %s", o.main())
	}
}

func TestLeanArguments(t *testing.T) {
	for _, c := range [][2]string{
		{"python3 -m ipykernel_launcher -f x", "python3 " + leanLauncher + " -f x"},
		{"python3 -I -m ipykernel_launcher", "python3 -I " + leanLauncher},
		{"python3 -m bash_kernel -f x", "python3 -m bash_kernel -f x"},
		{"ir -m", "ir -m"},
		{"ir", "ir"},
	} {
		if got := strings.Join(lean(strings.Fields(c[0])), " "); got != c[1] {
			t.Errorf("lean(%q) = %q, want %q", c[0], got, c[1])
		}
	}
}

// Before a snapshot a kernel collects its garbage, keeps the rest out of later
// collections, and shows no trace of it.
func TestSettle(t *testing.T) {
	m := manager(t)
	code(t, m, "import gc, weakref\nclass Ring: pass\nr = Ring(); r.self = r; w = weakref.ref(r); gc.disable(); del r")
	if err := m.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := code(t, m, "w() is None, gc.get_freeze_count() > 10000, get_ipython().execution_count"); o.main() != "(True, True, 2)" {
		t.Errorf("got %s", o.main())
	}
}
