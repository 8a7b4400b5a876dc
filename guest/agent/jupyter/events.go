package jupyter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/arenero/arenero"
)

const (
	chartMIME    = "application/vnd.arenero.chart+json"
	maxMIMEs     = 64
	maxTraceback = 1000 // lines
	maxErrorText = 64 << 10
)

// bundle turns the data of a display into texts, and takes our chart out of it.
func bundle(data map[string]json.RawMessage) (mime map[string]string, chart []byte) {
	mime = make(map[string]string, len(data))
	for kind, raw := range data {
		if kind == chartMIME {
			chart = checkChart(raw)
			continue
		}
		if len(mime) == maxMIMEs || len(kind) > 256 {
			continue
		}
		mime[strings.ToValidUTF8(kind, "\uFFFD")] = mimeText(kind, raw)
	}
	return mime, chart
}

// mimeText is a value as text: JSON types stay JSON, others are a string or, from
// some kernels, a list of lines.
func mimeText(kind string, raw json.RawMessage) string {
	if kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		if s, ok := unquote(raw); ok {
			return strings.ToValidUTF8(string(s), "\uFFFD")
		}
		var lines []string
		if json.Unmarshal(raw, &lines) == nil {
			return strings.Join(lines, "")
		}
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD")
}

// checkChart returns the JSON of a chart if it is one and not too large.
func checkChart(raw json.RawMessage) []byte {
	text, ok := unquote(raw)
	if !ok || len(text) > MaxChart {
		return nil
	}
	var c arenero.Chart
	if json.Unmarshal(text, &c) != nil || c.Type == "" {
		return nil
	}
	return text
}

// A failure is an error as a kernel reports it.
type failure struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
	Status    string   `json:"status"` // in a reply
	Count     int      `json:"execution_count"`
	Payload   []struct {
		Source string                     `json:"source"`
		Data   map[string]json.RawMessage `json:"data"`
	} `json:"payload"`
	Arenero struct {
		Exit   *int   `json:"exit"`
		Stderr string `json:"stderr"`
		Errno  int    `json:"errno"`
	} `json:"arenero"`
}

// An ending is what a failure means for the end of the cell.
type ending struct {
	reason arenero.ExitReason
	code   int
	shown  bool   // the reader is told of the error itself
	stderr string // what Python writes when a program exits so
}

const (
	errnoAgain  = 11
	errnoNoMem  = 12
	errnoNoSpc  = 28
	errnoDQuota = 122
)

// classify says what a failure means. Text is looked at only where the kernel
// gives no number.
func classify(f failure) ending {
	switch {
	case f.Arenero.Exit != nil:
		return ending{reason: arenero.Exited, code: *f.Arenero.Exit & 0xff, stderr: f.Arenero.Stderr}
	case f.Name == "SystemExit":
		return systemExit(f.Value)
	case f.Name == "":
		// A shell: the last command's status, and no exception at all.
		if n, err := strconv.Atoi(f.Value); err == nil {
			return ending{reason: arenero.Exited, code: n & 0xff}
		}
	}
	e := ending{reason: arenero.RaisedError, code: 1, shown: true}
	text := f.Value
	switch n := f.Arenero.Errno; {
	case n == errnoNoSpc || n == errnoDQuota, n == 0 && strings.Contains(text, "No space left on device"):
		e.reason = arenero.DiskFull
	case n == errnoAgain && (f.Name == "BlockingIOError" || f.Name == "OSError"),
		strings.Contains(text, "can't start new thread"),
		n == 0 && f.Name != "" && strings.Contains(text, "Resource temporarily unavailable"):
		e.reason = arenero.ProcessLimit
	case n == errnoNoMem, f.Name == "MemoryError", strings.HasSuffix(f.Name, "ArrayMemoryError"):
		e.reason = arenero.OutOfMemory
	}
	return e
}

func systemExit(value string) ending {
	switch value {
	case "", "None":
		return ending{reason: arenero.Exited}
	case "True":
		return ending{reason: arenero.Exited, code: 1}
	case "False":
		return ending{reason: arenero.Exited}
	}
	if n, err := strconv.Atoi(value); err == nil {
		return ending{reason: arenero.Exited, code: n & 0xff}
	}
	return ending{reason: arenero.Exited, code: 1, stderr: value + "\n"}
}

// runError makes what the reader sees of a failure, bounded and valid.
func runError(f failure) *arenero.RunError {
	e := &arenero.RunError{Name: cut(f.Name, 1<<10), Value: cut(f.Value, maxErrorText), Traceback: []string{}}
	total := 0
	for i, line := range f.Traceback {
		if i == maxTraceback || total > 4*maxErrorText {
			e.Traceback = append(e.Traceback, fmt.Sprintf("... %d more lines", len(f.Traceback)-i))
			break
		}
		line = cut(line, maxErrorText)
		total += len(line)
		e.Traceback = append(e.Traceback, line)
	}
	return e
}

// cut shortens s to n bytes, and says so.
func cut(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// streamText reads the content of a stream message without losing a byte.
func streamText(content json.RawMessage) (name string, text []byte, ok bool) {
	var c struct {
		Name string          `json:"name"`
		Text json.RawMessage `json:"text"`
	}
	if json.Unmarshal(content, &c) != nil {
		return "", nil, false
	}
	if text, ok = unquote(c.Text); !ok {
		return "", nil, bytes.Equal(c.Text, []byte("null"))
	}
	return c.Name, text, true
}
