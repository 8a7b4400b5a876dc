// Package e2e holds proofs about the whole product, as it is built and shipped.
package e2e

import (
	"debug/buildinfo"
	"debug/elf"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
)

var update = flag.Bool("update", false, "rewrite docs/deps.txt")

// budget is what a binary may weigh. It is there to be changed: in a commit that
// says what the bytes are for.
func budget() map[string]int64 {
	return map[string]int64{
		"cmd/arenero": 112 * arenero.MiB,
		"cmd/guest":   16 * arenero.MiB,
	}
}

// TestBinaries builds what is shipped and holds it to its budget, to being
// static, and to the modules listed in docs/deps.txt, so that a new dependency is
// seen in review.
func TestBinaries(t *testing.T) {
	var deps strings.Builder
	deps.WriteString("Modules linked into each binary. Rewrite with: go test ./e2e -run TestBinaries -update\n")
	for _, b := range []struct{ pkg, bin string }{{"cmd/guest", "../guest/bin/guest"}, {"cmd/arenero", built}} {
		info, err := os.Stat(b.bin)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MiB", b.pkg, float64(info.Size())/float64(arenero.MiB))
		if info.Size() > budget()[b.pkg] {
			t.Errorf("%s weighs %d bytes, the budget is %d", b.pkg, info.Size(), budget()[b.pkg])
		}
		static(t, b.bin)
		bi, err := buildinfo.ReadFile(b.bin)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&deps, "\n%s\n", b.pkg)
		for _, d := range bi.Deps {
			fmt.Fprintf(&deps, "\t%s %s\n", d.Path, d.Version)
		}
	}
	const file = "../docs/deps.txt"
	if *update {
		if err := os.WriteFile(file, []byte(deps.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), deps.String()); d != "" {
		t.Errorf("docs/deps.txt is not what is linked (run with -update and say in the commit what the module is for):\n%s", d)
	}
}

// TestMain builds what is shipped, as `make build` does: the agent first, which
// the main program embeds.
func TestMain(m *testing.M) {
	gvisor.Dispatch() // sandboxes of hosts that live in this process
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "e2e")
		if err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(dir)
		built = filepath.Join(dir, "arenero")
		goBuild("cmd/guest", "guest/bin/guest")
		goBuild("cmd/arenero", built)
		return m.Run()
	}())
}

// built is the program under test.
var built string

func goBuild(pkg, bin string) {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./"+pkg)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		log.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
}

func static(t *testing.T, bin string) {
	t.Helper()
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("%s is not static: %v %v", filepath.Base(bin), libs, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s needs a loader", filepath.Base(bin))
		}
	}
}
