package arenero

import (
	"fmt"
	"time"
)

// Size units.
const (
	KiB int64 = 1 << 10
	MiB int64 = 1 << 20
	GiB int64 = 1 << 30
)

// Limits bound what one sandbox may use. The zero value of a field means "the
// default"; [Limits.WithDefaults] fills it in. An engine that cannot enforce a
// limit refuses to create the box: limits are never silently weaker.
type Limits struct {
	CPUs      float64       `json:"cpus"`       // cores, as a quota: 0.5 is half of one
	Memory    int64         `json:"memory"`     // bytes for everything inside the sandbox
	Processes int           `json:"processes"`  // processes and threads of the user inside
	Disk      int64         `json:"disk"`       // bytes that may be written, all places together
	OpenFiles int           `json:"open_files"` // file descriptors a process
	Output    int64         `json:"output"`     // bytes kept of each of stdout and stderr of one exec
	Timeout   time.Duration `json:"-"`          // how long one exec may take when the request names no time
}

// DefaultLimits is what a sandbox gets that asks for nothing.
func DefaultLimits() Limits {
	return Limits{
		CPUs:      1,
		Memory:    1 * GiB,
		Processes: 256,
		Disk:      1 * GiB,
		OpenFiles: 1024,
		Output:    1 * MiB, // kept up to five times over while a run is answered
		Timeout:   60 * time.Second,
	}
}

// Bounds of what may be asked at all, whatever the machine.
const (
	MinMemory    = 64 * MiB
	MaxMemory    = 1024 * GiB
	MinDisk      = 16 * MiB
	MaxDisk      = 16 * 1024 * GiB
	MinCPUs      = 0.05
	MaxCPUs      = 512
	MinProcesses = 16
	MaxProcesses = 65536
	MinOpenFiles = 64
	MaxOpenFiles = 1 << 20
	MinOutput    = 1 * KiB
	MaxOutput    = 1 * GiB
	MaxTimeout   = 24 * time.Hour
)

// WithDefaults returns l with every zero field replaced by the default.
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits()
	if l.CPUs == 0 {
		l.CPUs = d.CPUs
	}
	if l.Memory == 0 {
		l.Memory = d.Memory
	}
	if l.Processes == 0 {
		l.Processes = d.Processes
	}
	if l.Disk == 0 {
		l.Disk = d.Disk
	}
	if l.OpenFiles == 0 {
		l.OpenFiles = d.OpenFiles
	}
	if l.Output == 0 {
		l.Output = d.Output
	}
	if l.Timeout == 0 {
		l.Timeout = d.Timeout
	}
	return l
}

// Validate returns an [Invalid] error that names the first field out of bounds.
// Call it on limits that went through [Limits.WithDefaults].
func (l Limits) Validate() error {
	bad := func(field string, got, low, high any) error {
		return Errorf(Invalid, "check limits", "", "%s is %v, must be between %v and %v", field, got, low, high)
	}
	switch {
	case !(l.CPUs >= MinCPUs && l.CPUs <= MaxCPUs): // also refuses NaN
		return bad("cpus", l.CPUs, MinCPUs, MaxCPUs)
	case l.Memory < MinMemory || l.Memory > MaxMemory:
		return bad("memory", l.Memory, MinMemory, MaxMemory)
	case l.Processes < MinProcesses || l.Processes > MaxProcesses:
		return bad("processes", l.Processes, MinProcesses, MaxProcesses)
	case l.Disk < MinDisk || l.Disk > MaxDisk:
		return bad("disk", l.Disk, MinDisk, MaxDisk)
	case l.OpenFiles < MinOpenFiles || l.OpenFiles > MaxOpenFiles:
		return bad("open_files", l.OpenFiles, MinOpenFiles, MaxOpenFiles)
	case l.Output < MinOutput || l.Output > MaxOutput:
		return bad("output", l.Output, MinOutput, MaxOutput)
	case l.Timeout <= 0 || l.Timeout > MaxTimeout:
		return bad("timeout", l.Timeout, time.Duration(1), MaxTimeout)
	}
	return nil
}

// String reads "1 cpu, 1024 MiB memory, ...", for logs and tables.
func (l Limits) String() string {
	return fmt.Sprintf("%g cpus, %d MiB memory, %d processes, %d MiB disk",
		l.CPUs, l.Memory/MiB, l.Processes, l.Disk/MiB)
}
