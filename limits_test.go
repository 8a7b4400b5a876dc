package arenero_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

func TestDefaultLimitsAreValid(t *testing.T) {
	if err := arenero.DefaultLimits().Validate(); err != nil {
		t.Fatal(err)
	}
	if got := (arenero.Limits{}).WithDefaults(); got != arenero.DefaultLimits() {
		t.Errorf("the zero value became %v", got)
	}
	set := arenero.Limits{CPUs: 2, Memory: arenero.GiB, Processes: 20, Disk: arenero.GiB, OpenFiles: 99, Output: 2048, Timeout: time.Second}
	if got := set.WithDefaults(); got != set {
		t.Errorf("a default replaced a value that was set: %v became %v", set, got)
	}
}

func TestLimitsValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*arenero.Limits)
		field  string // named by the message; "" is valid
	}{
		"least of all":      {func(l *arenero.Limits) { *l = least() }, ""},
		"most of all":       {func(l *arenero.Limits) { *l = most() }, ""},
		"negative cpus":     {func(l *arenero.Limits) { l.CPUs = -1 }, "cpus"},
		"cpus not a number": {func(l *arenero.Limits) { l.CPUs = math.NaN() }, "cpus"},
		"infinite cpus":     {func(l *arenero.Limits) { l.CPUs = math.Inf(1) }, "cpus"},
		"negative memory":   {func(l *arenero.Limits) { l.Memory = -1 }, "memory"},
		"little memory":     {func(l *arenero.Limits) { l.Memory = arenero.MinMemory - 1 }, "memory"},
		"absurd memory":     {func(l *arenero.Limits) { l.Memory = math.MaxInt64 }, "memory"},
		"one process":       {func(l *arenero.Limits) { l.Processes = 1 }, "processes"},
		"absurd processes":  {func(l *arenero.Limits) { l.Processes = math.MaxInt }, "processes"},
		"negative disk":     {func(l *arenero.Limits) { l.Disk = math.MinInt64 }, "disk"},
		"no open files":     {func(l *arenero.Limits) { l.OpenFiles = 3 }, "open_files"},
		"absurd output":     {func(l *arenero.Limits) { l.Output = arenero.MaxOutput + 1 }, "output"},
		"negative timeout":  {func(l *arenero.Limits) { l.Timeout = -time.Second }, "timeout"},
		"a year":            {func(l *arenero.Limits) { l.Timeout = 365 * 24 * time.Hour }, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			l := arenero.DefaultLimits()
			c.change(&l)
			err := l.Validate()
			switch {
			case c.field == "" && err != nil:
				t.Fatal(err)
			case c.field == "":
			case arenero.CodeOf(err) != arenero.Invalid:
				t.Fatalf("code %q of %v", arenero.CodeOf(err), err)
			case !strings.Contains(err.Error(), c.field+" is "):
				t.Fatalf("%q does not name %s", err, c.field)
			}
		})
	}
}

func least() arenero.Limits {
	return arenero.Limits{
		CPUs: arenero.MinCPUs, Memory: arenero.MinMemory, Processes: arenero.MinProcesses, Disk: arenero.MinDisk,
		OpenFiles: arenero.MinOpenFiles, Output: arenero.MinOutput, Timeout: 1,
	}
}

func most() arenero.Limits {
	return arenero.Limits{
		CPUs: arenero.MaxCPUs, Memory: arenero.MaxMemory, Processes: arenero.MaxProcesses, Disk: arenero.MaxDisk,
		OpenFiles: arenero.MaxOpenFiles, Output: arenero.MaxOutput, Timeout: arenero.MaxTimeout,
	}
}

func TestLimitsString(t *testing.T) {
	if got, want := arenero.DefaultLimits().String(), "1 cpus, 1024 MiB memory, 256 processes, 1024 MiB disk"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
