package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arenero/arenero"
)

func TestBuiltinRecipes(t *testing.T) {
	names := Builtin()
	if len(names) < 2 {
		t.Fatalf("builtin recipes: %v", names)
	}
	for _, n := range names {
		r, err := LoadRecipe(n)
		if err != nil || r.Name != n || r.Debian.Suite != "bookworm" {
			t.Errorf("%s: %+v, %v", n, r, err)
		}
	}
}

func TestBadRecipes(t *testing.T) {
	for name, text := range map[string]string{
		"empty":             "",
		"no name":           "apt: [bash]",
		"unknown field":     "name: x\nhooks: [x]",
		"unknown sub field": "name: x\ndebian: {release: sid}",
		"not a list":        "name: x\napt: bash",
		"two documents":     "name: x\n---\nname: y",
		"option as package": "name: x\napt: ['-oDPkg::Pre-Invoke=x']",
		"shell as package":  "name: x\napt: ['a; rm -rf /']",
		"comma":             "name: x\napt: ['a,b']",
		"pip option":        "name: x\npip: ['--index-url=http://x']",
		"pip file":          "name: x\npip: ['/etc/x']",
		"pip url":           "name: x\npip: ['x @ http://evil/']",
		"npm option":        "name: x\nnpm: ['--prefix']",
		"npm url":           "name: x\nnpm: ['git+ssh://x']",
		"suite":             "name: x\ndebian: {suite: '../x'}",
		"mirror option":     "name: x\ndebian: {mirror: '[trusted=yes] http://x'}",
		"relative file":     "name: x\nfiles: [{path: etc/x}]",
		"dotdot file":       "name: x\nfiles: [{path: /etc/../x}]",
		"root file":         "name: x\nfiles: [{path: /}]",
		"suid file":         "name: x\nfiles: [{path: /x, mode: '4755'}]",
		"both":              "name: x\nfiles: [{path: /x, content: a, source: b}]",
		"source outside":    "name: x\nfiles: [{path: /x, source: ../../etc/shadow}]",
		"source absolute":   "name: x\nfiles: [{path: /x, source: /etc/shadow}]",
		"env name":          "name: x\nenv: {'A B': c}",
		"workdir":           "name: x\nworkdir: work",
		"user":              "name: x\nuser: 'a:b'",
		"warm":              "name: x\nwarm: [{name: 'a b', language: x}]",
		"run":               "name: x\nrun: [[]]",
		"name":              "name: ../x",
		"nul":               "name: x\nstart: [\"a\\0b\"]",
		"alias bomb":        "a: &a [x,x]\nb: &b [*a,*a]\nname: x",
		"binary":            "\x00\xff\xfe",
	} {
		_, err := ParseRecipe([]byte(text), "")
		if arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseRecipe(make([]byte, maxRecipe+1), ""); arenero.CodeOf(err) != arenero.TooLarge {
		t.Errorf("huge: %v", err)
	}
	if _, err := LoadRecipe("no/such/file.yaml"); arenero.CodeOf(err) != arenero.NotFound || !strings.Contains(arenero.HintOf(err), "python") {
		t.Errorf("no file: %v", err)
	}
}

func TestSourcesStayBesideTheRecipe(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, []byte("secret"), 0o600)
	write(t, filepath.Join(dir, "sub/data"), []byte("data"), 0o600)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "r.yaml")
	write(t, file, []byte("name: x\nfiles: [{path: /x, source: sub/data}]"), 0o600)
	r, err := LoadRecipe(file)
	if err != nil || string(r.Files[0].data) != "data" {
		t.Fatalf("%+v, %v", r, err)
	}
	before := r.Digest()
	write(t, filepath.Join(dir, "sub/data"), []byte("datb"), 0o600)
	if r, err = LoadRecipe(file); err != nil || r.Digest() == before {
		t.Errorf("another source has the same digest: %v", err)
	}
	write(t, file, []byte("name: x\nfiles: [{path: /x, source: link}]"), 0o600)
	if _, err := LoadRecipe(file); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("a link led out: %v", err)
	}
	write(t, file, []byte("name: x\nfiles: [{path: /x, source: sub}]"), 0o600)
	if _, err := LoadRecipe(file); arenero.CodeOf(err) != arenero.Invalid {
		t.Errorf("a folder as source: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, n := range []string{"python", "a", "a/b/c:1.2", "ghcr.io/owner/name:Latest", "x_y-z.1"} {
		if err := checkName(n); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []string{"", "A", ".", "..", "a/../b", "/a", "a/", "a//b", "-a", "a:", "a:b:c", "a b", "a\n", "a\x00", "é", "a..b", "+store", strings.Repeat("a", 300)} {
		if err := checkName(n); arenero.CodeOf(err) != arenero.Invalid {
			t.Errorf("%q passed: %v", n, err)
		}
	}
}

func FuzzRecipe(f *testing.F) {
	f.Add([]byte(testRecipe))
	f.Add([]byte("name: x\nfiles: [{path: /x, source: ../y}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecipe(data, "")
		if err != nil {
			if c := arenero.CodeOf(err); c != arenero.Invalid && c != arenero.TooLarge {
				t.Fatalf("code %s: %v", c, err)
			}
			return
		}
		for _, p := range append(append(r.packages(), r.Pip...), r.Npm...) {
			if strings.HasPrefix(p, "-") || strings.ContainsAny(p, ";|&$`\n") {
				t.Fatalf("package %q", p)
			}
		}
	})
}
