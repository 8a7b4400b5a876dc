package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct {
	JSON bool `help:"As JSON." name:"json"`
}

// Run prints what this binary is made of.
func (c *versionCmd) Run(m *Main) error {
	v := struct {
		Version string `json:"version"`
		GVisor  string `json:"gvisor"`
		Go      string `json:"go"`
		OS      string `json:"os"`
		Arch    string `json:"arch"`
	}{version, moduleVersion("gvisor.dev/gvisor"), runtime.Version(), runtime.GOOS, runtime.GOARCH}
	if c.JSON {
		return json.NewEncoder(m.Stdout).Encode(v)
	}
	_, err := fmt.Fprintf(m.Stdout, "arenero %s (gvisor %s, %s, %s/%s)\n", v.Version, v.GVisor, v.Go, v.OS, v.Arch)
	return err
}

// moduleVersion is the version of a module linked into this binary.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return "unknown"
}
