package jupyter

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/arenero/arenero"
)

// spec is one installed kernelspec, as far as it concerns us.
type spec struct {
	name      string
	dir       string            // of kernel.json, for {resource_dir}
	ours      bool              // one of our own kernels, which reads what stands under "arenero" in a request
	Argv      []string          `json:"argv"`
	Display   string            `json:"display_name"`
	Language  string            `json:"language"`
	Interrupt string            `json:"interrupt_mode"`
	Env       map[string]string `json:"env"`
}

const maxSpecBytes = 256 << 10

// What starts an IPython kernel: ipykernel's own module, and ours before it.
const (
	launcher     = "ipykernel_launcher"
	leanLauncher = "{arenero}/_arenero_python.py"
)

// specDirs is where Jupyter itself looks, the user's own first.
func (m *Manager) specDirs() []string {
	if m.cfg.SpecDirs != nil {
		return m.cfg.SpecDirs
	}
	dirs := []string{"/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels"}
	if home := m.cfg.User().Home; home != "" {
		dirs = append([]string{filepath.Join(home, ".local/share/jupyter/kernels")}, dirs...)
	}
	return dirs
}

// Specs lists the kernels that are installed, by name. A folder that cannot be
// read, or that holds no usable kernel.json, is passed over.
func (m *Manager) Specs() []arenero.KernelSpec {
	var out []arenero.KernelSpec
	for _, s := range m.specs() {
		out = append(out, arenero.KernelSpec{Name: s.name, Language: s.Language, Display: s.Display})
	}
	return out
}

func (m *Manager) specs() []spec {
	var out []spec
	seen := map[string]bool{}
	for _, dir := range m.specDirs() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // most of the places Jupyter looks in do not exist
		}
		for _, e := range entries {
			name := strings.ToLower(e.Name())
			if seen[name] || !goodName.MatchString(name) {
				continue
			}
			s, err := readSpec(filepath.Join(dir, e.Name()))
			if err != nil {
				continue
			}
			s.name = name
			seen[name] = true
			out = append(out, s)
		}
	}
	out = append(out, m.ownSpecs(out)...)
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// ownSpecs are kernels we bring along, for languages that the image has the
// interpreter of but no kernel: they need ipykernel, which the image's Python
// kernel says where to find.
func (m *Manager) ownSpecs(installed []spec) []spec {
	var python string
	for _, s := range installed {
		if s.Language == "bash" {
			return nil
		}
		for _, a := range s.Argv {
			if python == "" && (a == launcher || a == leanLauncher) {
				python = s.Argv[0]
			}
		}
	}
	if fi, err := os.Stat("/bin/bash"); err != nil || !fi.Mode().IsRegular() || python == "" {
		return nil
	}
	return []spec{{
		name: "bash", ours: true, Display: "Bash", Language: "bash",
		Argv: []string{python, "{arenero}/_arenero_bash.py", "-f", "{connection_file}"},
	}}
}

// readSpec reads a kernelspec. Images are hostile too: the file is bounded and
// has to be a regular one.
func readSpec(dir string) (spec, error) {
	path := filepath.Join(dir, "kernel.json")
	fi, err := os.Stat(path)
	if err != nil {
		return spec{}, err
	}
	if !fi.Mode().IsRegular() {
		return spec{}, os.ErrInvalid
	}
	f, err := os.Open(path)
	if err != nil {
		return spec{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSpecBytes))
	if err != nil {
		return spec{}, err
	}
	return parseSpec(dir, b)
}

func parseSpec(dir string, b []byte) (spec, error) {
	s := spec{dir: dir}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&s); err != nil {
		return spec{}, err
	}
	s.Argv = lean(s.Argv)
	if len(s.Argv) == 0 || s.Argv[0] == "" || len(s.Argv) > 256 {
		return spec{}, os.ErrInvalid
	}
	for _, a := range s.Argv {
		if strings.ContainsRune(a, 0) {
			return spec{}, os.ErrInvalid
		}
	}
	s.Language = strings.ToLower(s.Language)
	return s, nil
}

// lean starts an IPython kernel through _arenero_python.py, which leaves out what
// only costs memory here.
func lean(argv []string) []string {
	for i, a := range argv[:max(0, len(argv)-1)] {
		if a == "-m" && argv[i+1] == launcher {
			return slices.Concat(argv[:i], []string{leanLauncher}, argv[i+2:])
		}
	}
	return argv
}

// spec finds the kernel for a language or a spec's name; "" is python. Of several
// of one language the one named like the language, with or without its version,
// is taken, then the first by name.
func (m *Manager) spec(language string) (spec, error) {
	want := strings.ToLower(language)
	if want == "" {
		want = "python"
	}
	all := m.specs()
	var byLanguage *spec
	for i, s := range all {
		if s.name == want {
			return s, nil
		}
		if s.Language != want {
			continue
		}
		better := strings.HasPrefix(s.name, want) && byLanguage != nil && !strings.HasPrefix(byLanguage.name, want)
		if byLanguage == nil || better {
			byLanguage = &all[i]
		}
	}
	if byLanguage != nil {
		return *byLanguage, nil
	}
	var have []string
	for _, s := range all {
		have = append(have, s.name)
	}
	hint := "this image has no Jupyter kernel installed"
	if have != nil {
		hint = "this image has: " + strings.Join(have, ", ")
	}
	return spec{}, arenero.Errorf(arenero.NotFound, "start kernel", "",
		"no kernel for the language %.70q is installed", language).WithHint("%s", hint)
}
