package arenero

import "time"

// An Image is a read-only root file system shared by all sandboxes made of it,
// with what the engine and the agent need to know of it.
type Image struct {
	Name     string            `json:"name"`            // what users call it: "python"
	Digest   string            `json:"digest"`          // "sha256:..." of the EROFS file
	Size     int64             `json:"size"`            // bytes of the EROFS file
	Source   string            `json:"source"`          // "recipe python", "registry.example/x@sha256:...", "import x.tar"
	Created  time.Time         `json:"created"`         //
	Env      map[string]string `json:"env,omitempty"`   //
	User     User              `json:"user"`            // who user code is
	Workdir  string            `json:"workdir"`         //
	Kernels  []KernelSpec      `json:"kernels"`         // found in the image
	Start    []string          `json:"start,omitempty"` // command started after boot
	Warm     []WarmKernel      `json:"warm,omitempty"`  // kernels to have running in the warm image
	RootFS   string            `json:"-"`               // path of the EROFS file on this machine
	Snapshot string            `json:"-"`               // directory of a usable warm snapshot; "" when there is none
	ColdWhy  string            `json:"-"`               // why there is none
}

// A WarmKernel is a kernel that a warm image has running, and the code it ran.
type WarmKernel struct {
	Name     string `json:"name"`
	Language string `json:"language"`
	Code     string `json:"code,omitempty"` // imports
}
