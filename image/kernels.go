package image

import (
	"encoding/json"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/arenero/arenero"
)

// kernelDirs are where Jupyter looks for kernels, the first to be found wins.
var kernelDirs = []string{"usr/local/share/jupyter/kernels", "usr/share/jupyter/kernels", "opt/venv/share/jupyter/kernels"}

// findKernels reads the kernel specs in a tree, sorted by name. What is not a
// spec is left out.
func findKernels(root *os.Root) []arenero.KernelSpec {
	specs := []arenero.KernelSpec{}
	for _, dir := range kernelDirs {
		d, err := root.Open(dir)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(256)
		_ = d.Close()
		for _, name := range names {
			spec, ok := readKernel(root, path.Join(dir, name, "kernel.json"), name)
			if ok && !slices.ContainsFunc(specs, func(k arenero.KernelSpec) bool { return k.Name == name }) {
				specs = append(specs, spec)
			}
		}
	}
	slices.SortFunc(specs, func(a, b arenero.KernelSpec) int { return strings.Compare(a.Name, b.Name) })
	return specs
}

func readKernel(root *os.Root, file, name string) (arenero.KernelSpec, bool) {
	data, err := readFile(root, file, 64<<10)
	if err != nil || !kernelRE.MatchString(name) {
		return arenero.KernelSpec{}, false
	}
	var k struct {
		Argv     []string `json:"argv"`
		Display  string   `json:"display_name"`
		Language string   `json:"language"`
	}
	if json.Unmarshal(data, &k) != nil || len(k.Argv) == 0 {
		return arenero.KernelSpec{}, false
	}
	k.Language = strings.ToLower(k.Language)
	if !kernelRE.MatchString(k.Language) || len(k.Display) > 200 {
		return arenero.KernelSpec{}, false
	}
	return arenero.KernelSpec{Name: name, Language: k.Language, Display: clean(k.Display, 1)}, true
}
