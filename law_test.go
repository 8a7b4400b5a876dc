package arenero_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The import law, checked by reading the sources. It does not ask `go list`: an
// answer of a child process is not an input of the test cache, and a violation
// would go unseen until something else changed.

const module = "github.com/arenero/arenero"

// rooms lists every folder with Go code and what of this module it may import.
// The root is open to all of them and not listed. A folder that is not here
// cannot exist: there is no place for a "util".
func rooms() map[string][]string {
	anything := []string{"*"}
	return map[string][]string{
		".": nil,

		// Ground floor: siblings never meet.
		"engine/bundle":       nil,
		"engine/gvisor":       {"engine/bundle"},
		"engine/runc":         {"engine/bundle"},
		"engine/docker":       {"engine/bundle"},
		"engine/microvm":      nil,
		"engine/kube":         nil,
		"guest":               nil,
		"guest/wire":          nil,
		"guest/agent/jupyter": nil,
		"guest/agent":         {"guest/wire", "guest/agent/jupyter"},
		"guest/dial":          {"guest/wire"},
		"image":               nil,
		"network":             nil,
		"audit":               nil,
		"store":               nil,
		"client":              nil,

		// First floor. The host gets its engines from the roof.
		"host": {"guest", "guest/wire", "guest/dial", "image", "network", "audit", "store"},

		// Second floor: translate, and nothing else.
		"door":           {"host"},
		"door/rest":      {"host", "door"},
		"door/e2b":       {"host", "door"},
		"door/agentcore": {"host", "door"},
		"door/mcp":       {"host", "door"},
		"door/web":       {"host", "door"},
		"kube":           {"host"},

		// The roof wires.
		"cmd/arenero":            anything,
		"cmd/guest":              {"guest/agent", "guest/agent/jupyter", "guest/wire"},
		"cmd/arenero-controller": anything,

		// Proofs.
		"enginetest": anything,
		"attack":     anything,
		"e2e":        anything,
		"bench":      anything,
		"examples":   {"client"},
	}
}

// plain lists the top folders that hold no Go code of ours; two are made by make.
func plain() []string {
	return []string{"bin", "changelog", "demo-results", "deploy", "docs", "sdk"}
}

// keepers says who alone may import a heavy dependency, and why. It holds for
// tests too. A path ends a prefix: "k8s.io" covers "k8s.io/api/core/v1".
func keepers() map[string]keeper {
	return map[string]keeper{
		"C":                                      {nil, "the re-exec of the sentry breaks in a cgo build, and the binary is static"},
		"gvisor.dev/gvisor":                      {[]string{"engine/gvisor"}, "its API moves with every commit: one wall around it"},
		"database/sql":                           {[]string{"store"}, "one place knows that there is a database"},
		"modernc.org/sqlite":                     {[]string{"store"}, "one place knows that there is a database"},
		"k8s.io":                                 {[]string{"kube", "engine/kube", "cmd/arenero-controller"}, "80 MB that most users never need"},
		"sigs.k8s.io":                            {[]string{"kube", "engine/kube", "cmd/arenero-controller"}, "80 MB that most users never need"},
		"github.com/moby/moby":                   {[]string{"engine/docker"}, "Docker is one engine of several"},
		"github.com/docker/docker":               {[]string{"engine/docker"}, "Docker is one engine of several"},
		"github.com/mafredri/cdp":                {[]string{"door/agentcore"}, "only the browser door speaks to a browser"},
		"github.com/chromedp":                    {[]string{"door/agentcore"}, "only the browser door speaks to a browser"},
		"github.com/go-zeromq":                   {[]string{"guest/agent/jupyter"}, "the kernel's protocol stays inside the sandbox"},
		"connectrpc.com/connect":                 {[]string{"guest/wire", "guest/agent", "guest/dial"}, "the guest's contract is spoken by its two ends only"},
		"github.com/danielgtaylor":               {[]string{"door/rest"}, "one door is described by OpenAPI"},
		"github.com/alecthomas":                  {[]string{"cmd/arenero"}, "flags are the roof's"},
		"github.com/vbauerster":                  {[]string{"cmd/arenero"}, "progress is shown by the CLI only"},
		"github.com/vishvananda":                 {[]string{"network"}, "no engine holds a firewall rule"},
		"github.com/google/go-containerregistry": {[]string{"image", "enginetest"}, "OCI ends where our image begins"},
		"github.com/opencontainers/runtime-spec": {[]string{"engine/bundle", "engine/gvisor", "engine/runc"}, "only what runs OCI bundles knows them"},
	}
}

type keeper struct {
	rooms  []string
	reason string
}

// A source is one file as the law sees it.
type source struct {
	file    string // relative to the root, with slashes
	room    string
	test    bool
	imports []string
	inits   int // func init, generated code not counted
}

func TestLaw(t *testing.T) {
	srcs := sources(t)
	if len(srcs) < 10 {
		t.Fatalf("read %d files: the law looked in the wrong place", len(srcs))
	}
	for _, s := range srcs {
		for _, fault := range faults(s) {
			t.Errorf("%s: %s", s.file, fault)
		}
	}
}

// TestLawBites shows that each rule would be noticed.
func TestLawBites(t *testing.T) {
	for name, s := range map[string]source{
		"root with a third party": {room: ".", imports: []string{"golang.org/x/sys/unix"}},
		"root with our own":       {room: ".", imports: []string{module + "/host"}},
		"siblings that meet":      {room: "image", imports: []string{module + "/store"}},
		"an arrow that goes up":   {room: "store", imports: []string{module + "/host"}},
		"a host with an engine":   {room: "host", imports: []string{module + "/engine/gvisor"}},
		"a door without the host": {room: "door/rest", imports: []string{module + "/store"}},
		"gvisor out of its wall":  {room: "host", imports: []string{"gvisor.dev/gvisor/pkg/log"}},
		"a test through the wall": {room: "host", test: true, imports: []string{"gvisor.dev/gvisor/pkg/log"}},
		"sql out of the store":    {room: "host", imports: []string{"database/sql"}},
		"cgo":                     {room: "guest/agent", imports: []string{"C"}},
		"an unknown folder":       {room: "util", imports: nil},
		"an init":                 {room: "host", inits: 1},
	} {
		if len(faults(s)) == 0 {
			t.Errorf("%s: nothing was said", name)
		}
	}
	fine := source{room: "host", imports: []string{"fmt", module, module + "/store", "golang.org/x/sync/errgroup"}}
	if f := faults(fine); len(f) != 0 {
		t.Errorf("a lawful file was refused: %v", f)
	}
}

// TestFolders holds the top of the house to one screen.
func TestFolders(t *testing.T) {
	known := slices.Clone(plain())
	for room := range maps.Keys(rooms()) {
		top, _, _ := strings.Cut(room, "/")
		known = append(known, top)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(known, e.Name()) {
			t.Errorf("folder %s has no place in the house: add it to the table in law_test.go, or do without", e.Name())
		}
	}
}

// faults says what the law holds against a file.
func faults(s source) []string {
	may, known := rooms()[s.room]
	if !known {
		return []string{"folder " + s.room + " is not in the table of law_test.go"}
	}
	var out []string
	if s.inits > 0 && !s.test {
		out = append(out, "has a func init: wiring is done in cmd/arenero/serve.go")
	}
	for _, imp := range s.imports {
		if f := fault(s, may, imp); f != "" {
			out = append(out, f)
		}
	}
	return out
}

func fault(s source, may []string, imp string) string {
	for prefix, k := range keepers() {
		if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && !slices.Contains(k.rooms, s.room) {
			return fmt.Sprintf("imports %s, kept by %v: %s", imp, k.rooms, k.reason)
		}
	}
	own, ours := strings.CutPrefix(imp, module)
	own = strings.TrimPrefix(own, "/")
	switch {
	case !ours && s.room == "." && !s.test && !standard(imp):
		return "the root imports the standard library only, not " + imp
	case !ours, own == "", own == s.room:
		return ""
	case strings.HasPrefix(own, "cmd/"):
		return "nothing imports " + own
	case s.test, slices.Contains(may, "*"), slices.Contains(may, own):
		// Tests meet the real neighbours, because nothing is mocked.
		return ""
	}
	return fmt.Sprintf("imports %s; it may import the root and %v", own, may)
}

func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			hidden := strings.HasPrefix(base, ".") && base != "."
			if hidden || base == "testdata" || base == "node_modules" || name == "sdk" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		s, err := readSource(filepath.ToSlash(name))
		if err != nil {
			return err
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readSource(name string) (source, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return source{}, err
	}
	s := source{file: name, room: path.Dir(name), test: strings.HasSuffix(name, "_test.go")}
	// Programs of the examples are rooms of one household.
	if strings.HasPrefix(s.room, "examples/") {
		s.room = "examples"
	}
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return source{}, err
		}
		s.imports = append(s.imports, p)
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !ast.IsGenerated(f) {
			s.inits++
		}
	}
	return s, nil
}
