package image

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/arenero/arenero"
)

//go:embed recipes/*.yaml
var builtin embed.FS

// A Recipe says how to build an image from Debian, pip and npm packages.
type Recipe struct {
	Name    string            `yaml:"name" json:"name"`
	Debian  Debian            `yaml:"debian" json:"debian"`
	Apt     []string          `yaml:"apt" json:"apt,omitempty"`
	Pip     []string          `yaml:"pip" json:"pip,omitempty"`
	Npm     []string          `yaml:"npm" json:"npm,omitempty"`
	Files   []File            `yaml:"files" json:"files,omitempty"`
	Run     [][]string        `yaml:"run" json:"run,omitempty"` // commands, run as root in the tree after all else; no shell
	Env     map[string]string `yaml:"env" json:"env,omitempty"`
	User    string            `yaml:"user" json:"user,omitempty"`       // who user code is; "" is user, uid 1000
	Workdir string            `yaml:"workdir" json:"workdir,omitempty"` // "" is /workspace
	Start   []string          `yaml:"start" json:"start,omitempty"`     // command started after boot
	Warm    []Warm            `yaml:"warm" json:"warm,omitempty"`       // kernels to have running in the warm image

	dir string // where the sources of Files are; "" for a recipe without a file
}

// Debian says where the base system comes from.
type Debian struct {
	Suite      string   `yaml:"suite" json:"suite"`                     // "" is bookworm
	Mirror     string   `yaml:"mirror" json:"mirror,omitempty"`         // "" is what apt of this machine uses, else deb.debian.org
	Components []string `yaml:"components" json:"components,omitempty"` // none is main
}

// File is one file to put into the image, owned by root.
type File struct {
	Path    string `yaml:"path" json:"path"`
	Content string `yaml:"content" json:"content,omitempty"` // either this
	Source  string `yaml:"source" json:"source,omitempty"`   // or a file beside the recipe
	Mode    string `yaml:"mode" json:"mode,omitempty"`       // octal, at most 0777; "" is 0644

	data []byte // of Source
}

// Warm is a kernel to start before the warm image is taken, and what it runs.
type Warm struct {
	Name     string `yaml:"name" json:"name"`
	Language string `yaml:"language" json:"language"`
	Code     string `yaml:"code" json:"code,omitempty"`
}

// Bounds of a recipe.
const (
	maxRecipe = 1 << 20
	maxSource = 64 << 20
)

// Builtin lists the names of the recipes that come with the program.
func Builtin() []string {
	entries, err := builtin.ReadDir("recipes")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// LoadRecipe reads a recipe: one that comes with the program by its name, or any
// other from a YAML file. Errors: NotFound, Invalid.
func LoadRecipe(nameOrFile string) (Recipe, error) {
	const op = "load recipe"
	if slices.Contains(Builtin(), nameOrFile) {
		data, err := builtin.ReadFile("recipes/" + nameOrFile + ".yaml")
		if err != nil {
			return Recipe{}, fail(op, nameOrFile, err)
		}
		return ParseRecipe(data, "")
	}
	f, err := os.Open(nameOrFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Recipe{}, arenero.Errorf(arenero.NotFound, op, "", "no recipe and no file %q", nameOrFile).
			WithHint("recipes that come with arenero: %s", strings.Join(Builtin(), ", "))
	}
	if err != nil {
		return Recipe{}, fail(op, "", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecipe+1))
	if err != nil {
		return Recipe{}, fail(op, "", err)
	}
	return ParseRecipe(data, filepath.Dir(nameOrFile))
}

// ParseRecipe reads and checks a recipe. Sources of files are looked for below
// dir, and read now. Unknown fields are refused. Errors: Invalid, TooLarge.
func ParseRecipe(data []byte, dir string) (Recipe, error) {
	const op = "parse recipe"
	if len(data) > maxRecipe {
		return Recipe{}, arenero.Errorf(arenero.TooLarge, op, "", "over %d bytes", maxRecipe)
	}
	var r Recipe
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict(), yaml.DisallowUnknownField())
	if err := dec.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("empty")
		}
		return Recipe{}, arenero.Errorf(arenero.Invalid, op, "", "%s", yaml.FormatError(err, false, true)).
			WithHint("fields: name, debian, apt, pip, npm, files, run, env, user, workdir, start, warm")
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Recipe{}, arenero.Errorf(arenero.Invalid, op, "", "more than one document")
	}
	r.dir = dir
	if r.Debian.Suite == "" {
		r.Debian.Suite = "bookworm"
	}
	if len(r.Debian.Components) == 0 {
		r.Debian.Components = []string{"main"}
	}
	if err := r.check(); err != nil {
		return Recipe{}, err
	}
	return r, r.readSources()
}

var (
	suiteRE   = regexp.MustCompile(`^[a-z][a-z0-9-]{1,40}$`)
	aptRE     = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?(/[a-z-]+)?$`)
	pipRE     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]+\])?([ ]*(==|>=|<=|~=|!=|<|>)[ ]*[A-Za-z0-9.*+!_-]+[ ]*,?)*$`)
	npmRE     = regexp.MustCompile(`^(@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(@[A-Za-z0-9.^~<>=*-]+)?$`)
	mirrorRE  = regexp.MustCompile(`^(https?://|file:/)[A-Za-z0-9._~:/@%+-]+$`)
	envRE     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	kernelRE  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)
	accountRE = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	modeRE    = regexp.MustCompile(`^0?[0-7]{3}$`)
)

// check validates everything that later becomes an argument or a path.
func (r *Recipe) check() error {
	bad := func(field, format string, args ...any) error {
		return arenero.Errorf(arenero.Invalid, "check recipe", r.Name, field+": "+format, args...)
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if !suiteRE.MatchString(r.Debian.Suite) {
		return bad("debian.suite", "%q is not a suite", r.Debian.Suite)
	}
	if r.Debian.Mirror != "" && !mirrorRE.MatchString(r.Debian.Mirror) {
		return bad("debian.mirror", "%q is not an address", r.Debian.Mirror)
	}
	for field, list := range map[string]struct {
		items []string
		re    *regexp.Regexp
	}{
		"debian.components": {r.Debian.Components, suiteRE},
		"apt":               {r.Apt, aptRE},
		"pip":               {r.Pip, pipRE},
		"npm":               {r.Npm, npmRE},
	} {
		if len(list.items) > 2000 {
			return bad(field, "%d entries are too many", len(list.items))
		}
		for _, s := range list.items {
			if !list.re.MatchString(s) {
				return bad(field, "%q is not a valid entry", s)
			}
		}
	}
	for _, f := range r.Files {
		if err := f.check(); err != nil {
			return bad("files", "%w", err)
		}
	}
	for k, v := range r.Env {
		if !envRE.MatchString(k) || strings.ContainsRune(v, 0) {
			return bad("env", "%q is not a variable", k)
		}
	}
	if r.User != "" && !accountRE.MatchString(r.User) {
		return bad("user", "%q is not an account", r.User)
	}
	if r.Workdir != "" && !cleanAbs(r.Workdir) {
		return bad("workdir", "%q is not a clean absolute path", r.Workdir)
	}
	for field, list := range map[string][][]string{"start": {r.Start}, "run": r.Run} {
		for _, argv := range list {
			if field == "run" && len(argv) == 0 {
				return bad(field, "an empty command")
			}
			if strings.ContainsRune(strings.Join(argv, ""), 0) {
				return bad(field, "an argument holds a NUL byte")
			}
		}
	}
	for _, w := range r.Warm {
		if !kernelRE.MatchString(w.Name) || !kernelRE.MatchString(w.Language) {
			return bad("warm", "kernel %q of language %q", w.Name, w.Language)
		}
	}
	return nil
}

func (f *File) check() error {
	switch {
	case !cleanAbs(f.Path) || f.Path == "/":
		return arenero.Errorf(arenero.Invalid, "", "", "path %q is not a clean absolute path", f.Path)
	case f.Content != "" && f.Source != "":
		return arenero.Errorf(arenero.Invalid, "", "", "%s has both content and source", f.Path)
	case f.Mode != "" && !modeRE.MatchString(f.Mode):
		return arenero.Errorf(arenero.Invalid, "", "", "mode %q of %s is not octal, at most 0777", f.Mode, f.Path)
	case f.Source != "" && !filepath.IsLocal(f.Source):
		return arenero.Errorf(arenero.Invalid, "", "", "source %q is not below the folder of the recipe", f.Source)
	}
	return nil
}

// cleanAbs reports whether p is absolute, clean and free of NUL.
func cleanAbs(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0) && len(p) < 4096
}

// readSources reads the files that lie beside the recipe. A link may not lead
// out of its folder.
func (r *Recipe) readSources() error {
	for i := range r.Files {
		f := &r.Files[i]
		f.data = []byte(f.Content)
		if f.Source == "" {
			continue
		}
		if r.dir == "" {
			return arenero.Errorf(arenero.Invalid, "check recipe", r.Name, "source %q: the recipe lies in no folder", f.Source)
		}
		data, err := readBelow(r.dir, f.Source, maxSource)
		if err != nil {
			return arenero.Errorf(arenero.Invalid, "check recipe", r.Name, "source %q: %w", f.Source, err)
		}
		f.data = data
	}
	return nil
}

// readBelow reads a regular file of at most limit bytes below dir.
func readBelow(dir, name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readFile(root, name, limit)
}

// readFile reads a regular file of at most limit bytes below root.
func readFile(root *os.Root, name string, limit int64) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = arenero.Errorf(arenero.TooLarge, "", "", "over %d bytes", limit)
	}
	return data, err
}

// Digest names the recipe by its meaning, sources included.
func (r *Recipe) Digest() string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode(r) //nolint:errchkjson // strings always encode, and a hash takes every byte
	for _, f := range r.Files {
		_ = enc.Encode(f.data) //nolint:errchkjson // as above
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
