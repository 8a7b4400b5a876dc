package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
)

// Bounds of requests.
const (
	maxCode      = 8 << 20  // bytes of code, as JSON text
	maxBody      = 32 << 20 // bytes of a request with files in it
	maxSmallBody = 1 << 20
	maxDepth     = 64 // of JSON
)

// strictJSON is JSON in which nothing is guessed: broken UTF-8 and endless
// nesting are refused instead of mended.
var strictJSON = huma.Format{
	Marshal: func(w io.Writer, v any) error {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(v)
	},
	Unmarshal: func(data []byte, v any) error {
		if !utf8.Valid(data) {
			return errors.New("the body is not UTF-8")
		}
		if err := checkDepth(data); err != nil {
			return err
		}
		return json.Unmarshal(data, v)
	},
}

// checkDepth refuses deep nesting before anything is built of it.
func checkDepth(data []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		if inString {
			n := bytes.IndexAny(data[i:], `"\`)
			if n < 0 {
				return nil // unfinished: the parser says so
			}
			i += n
			if data[i] == '\\' {
				i++
			} else {
				inString = false
			}
			continue
		}
		switch data[i] {
		case '"':
			inString = true
		case '{', '[':
			if depth++; depth > maxDepth {
				return errors.New("the body is nested too deep")
			}
		case '}', ']':
			depth--
		}
	}
	return nil
}

// fileContent is what a request puts into a file: a text, or an object with
// base64 for bytes.
type fileContent struct {
	data []byte
}

// UnmarshalJSON reads either form.
func (f *fileContent) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err == nil {
		f.data = []byte(text)
		return nil
	}
	var o struct {
		Text   *string `json:"text"`
		Base64 *string `json:"base64"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil || (o.Text == nil) == (o.Base64 == nil) {
		return errors.New(`a file is a string, {"text": "..."} or {"base64": "..."}`)
	}
	if o.Text != nil {
		f.data = []byte(*o.Text)
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*o.Base64)
	if err != nil {
		return errors.New("a file is not base64")
	}
	f.data = data
	return nil
}

// Schema describes both forms.
func (fileContent) Schema(huma.Registry) *huma.Schema {
	text := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} }
	return &huma.Schema{OneOf: []*huma.Schema{
		text("The content, as text"),
		{
			Type: huma.TypeObject, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{"text": text("The content, as text"), "base64": text("The content, as base64")},
		},
	}}
}

// limitsBody is what a request may ask of limits; what is left out gets the
// default.
type limitsBody struct {
	CPUs      float64 `json:"cpus,omitempty" doc:"Cores, as a quota: 0.5 is half of one"`
	Memory    int64   `json:"memory,omitempty" doc:"Bytes for everything inside"`
	Processes int     `json:"processes,omitempty" doc:"Processes and threads of the user"`
	Disk      int64   `json:"disk,omitempty" doc:"Bytes that may be written, all places together"`
	OpenFiles int     `json:"open_files,omitempty" doc:"File descriptors of a process"`
	Output    int64   `json:"output,omitempty" doc:"Bytes kept of each of stdout and stderr of a run"`
	Timeout   float64 `json:"timeout,omitempty" doc:"Seconds a run may take that names no time"`
}

func (l limitsBody) limits() (arenero.Limits, error) {
	timeout, err := seconds("limits.timeout", l.Timeout)
	return arenero.Limits{
		CPUs: l.CPUs, Memory: l.Memory, Processes: l.Processes, Disk: l.Disk,
		OpenFiles: l.OpenFiles, Output: l.Output, Timeout: timeout,
	}, err
}

// seconds reads a number of seconds; 0 stays 0, "not said".
func seconds(field string, s float64) (time.Duration, error) {
	if !(s >= 0 && s <= arenero.MaxTimeout.Seconds()) { // also refuses NaN
		return 0, arenero.Errorf(arenero.Invalid, "check request", "", "%s is %g, must be between 0 and %g seconds", field, s, arenero.MaxTimeout.Seconds())
	}
	d := time.Duration(s * float64(time.Second))
	if s > 0 && d < time.Millisecond {
		d = time.Millisecond
	}
	return d, nil
}

// checkCode refuses code that no interpreter could be given.
func checkCode(code string) error {
	if len(code) > maxCode {
		return arenero.Errorf(arenero.TooLarge, "check code", "", "it has %d bytes, at most %d", len(code), maxCode).
			WithHint("put data into files")
	}
	if strings.ContainsRune(code, 0) {
		return arenero.Errorf(arenero.Invalid, "check code", "", "it has a NUL byte")
	}
	return nil
}

// checkPath refuses paths that mean something else than they say. What the rest
// may reach is for the guest to decide, with the rights of the sandbox's user.
func checkPath(path string) error {
	const op = "check path"
	switch {
	case path == "":
		return arenero.Errorf(arenero.Invalid, op, "", "it is empty")
	case len(path) > 4096:
		return arenero.Errorf(arenero.Invalid, op, "", "it has %d bytes, at most 4096", len(path))
	case strings.ContainsRune(path, 0):
		return arenero.Errorf(arenero.Invalid, op, "", "it has a NUL byte")
	case !utf8.ValidString(path):
		return arenero.Errorf(arenero.Invalid, op, "", "it is not UTF-8")
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return arenero.Errorf(arenero.Invalid, op, "", `it has a part ".."`).WithHint("name the place itself")
	}
	return nil
}
