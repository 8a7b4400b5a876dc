package arenero

import (
	"encoding/json"
	"time"
)

// An ExitReason says why a run ended, in one word a program can act on.
type ExitReason string

// Why a run ended.
const (
	Exited       ExitReason = "exited"        // by itself, with its own status
	RaisedError  ExitReason = "error"         // an uncaught exception in a kernel
	TimedOut     ExitReason = "timeout"       // its time was up and it was killed
	OutOfMemory  ExitReason = "out_of_memory" // the memory limit
	DiskFull     ExitReason = "disk_full"     // the disk limit
	ProcessLimit ExitReason = "process_limit" // the limit of processes and threads
	OutputLimit  ExitReason = "output_limit"  // stopped because it wrote more than was allowed
	WasKilled    ExitReason = "killed"        // by a signal nobody of ours sent
	Cancelled    ExitReason = "cancelled"     // by the caller
	KernelDied   ExitReason = "kernel_died"   // the interpreter ended under the run
)

// A Result is how one run ended, the same in JSON everywhere: over HTTP, from the
// CLI with --json and in the clients.
type Result struct {
	ExitCode       int        `json:"exit_code"`
	ExitReason     ExitReason `json:"exit_reason"`
	Signal         string     `json:"signal,omitempty"`           // "SIGKILL", when a signal ended it
	Stdout         string     `json:"stdout"`                     // valid UTF-8, the last bytes if truncated
	Stderr         string     `json:"stderr"`                     //
	Output         string     `json:"output"`                     // both, and the text of results, in order
	Truncated      Truncated  `json:"truncated"`                  // bytes dropped
	Results        []Display  `json:"results"`                    // never null
	Error          *RunError  `json:"error,omitempty"`            // an exception, if one ended the run
	ExecutionCount int        `json:"execution_count,omitempty"`  // kernels only
	Duration       Millis     `json:"duration_ms" format:"float"` // wall clock, inside the sandbox
}

// Millis is a duration that is written in JSON as a number of milliseconds.
type Millis time.Duration

// MarshalJSON writes milliseconds, with three decimals.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(time.Duration(m).Microseconds()) / 1000)
}

// UnmarshalJSON reads milliseconds.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*m = Millis(f * float64(time.Millisecond))
	return nil
}

// Seconds is a duration that is written in JSON as a number of seconds.
type Seconds time.Duration

// MarshalJSON writes seconds, with three decimals.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(time.Duration(s).Milliseconds()) / 1000)
}

// UnmarshalJSON reads seconds.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*s = Seconds(f * float64(time.Second))
	return nil
}

// Truncated counts what was dropped: bytes of each stream, and results.
type Truncated struct {
	Stdout  int64 `json:"stdout"`
	Stderr  int64 `json:"stderr"`
	Results int   `json:"results,omitempty"`
}

// A RunError is an exception that code raised and nobody caught.
type RunError struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"` // with ANSI colours as the kernel sent them
}

// A Display is one rich result of a cell: the same thing in several MIME types.
// Binary types (image/png, image/jpeg, application/pdf) are base64, as in
// Jupyter; application/json and its kin are JSON text.
type Display struct {
	MIME   map[string]string `json:"mime"`
	IsMain bool              `json:"is_main"`              // the value of the last expression
	Chart  *Chart            `json:"chart,omitempty"`      // what the picture shows
	ID     string            `json:"display_id,omitempty"` // for update_display_data
}

// A Chart is a machine-readable description of a drawn figure.
type Chart struct {
	Type   string   `json:"type"` // line scatter bar box_and_whisker pie superchart unknown
	Title  string   `json:"title,omitempty"`
	XLabel string   `json:"x_label,omitempty"`
	YLabel string   `json:"y_label,omitempty"`
	XUnit  string   `json:"x_unit,omitempty"`
	YUnit  string   `json:"y_unit,omitempty"`
	XScale string   `json:"x_scale,omitempty"` // linear log datetime categorical symlog ...
	YScale string   `json:"y_scale,omitempty"`
	XTicks []any    `json:"x_ticks,omitempty"`
	YTicks []any    `json:"y_ticks,omitempty"`
	Series []Series `json:"series,omitempty"`
	Charts []Chart  `json:"charts,omitempty"` // subplots of a superchart
}

// A Series is one line, one cloud of points, one set of bars, boxes or slices.
type Series struct {
	Label  string   `json:"label,omitempty"`
	Points [][2]any `json:"points,omitempty"` // line, scatter: x, y
	Bars   []Bar    `json:"bars,omitempty"`   // bar, pie
	Boxes  []BoxBar `json:"boxes,omitempty"`  // box and whisker
}

// A Bar is one bar of a bar chart or one slice of a pie.
type Bar struct {
	Label  string  `json:"label"`
	Group  string  `json:"group,omitempty"`
	Value  float64 `json:"value"`
	Angle  float64 `json:"angle,omitempty"`  // pie: degrees
	Radius float64 `json:"radius,omitempty"` // pie
}

// A BoxBar is one box of a box plot.
type BoxBar struct {
	Label    string    `json:"label"`
	Min      float64   `json:"min"`
	Q1       float64   `json:"q1"`
	Median   float64   `json:"median"`
	Q3       float64   `json:"q3"`
	Max      float64   `json:"max"`
	Outliers []float64 `json:"outliers,omitempty"`
}
