package rest

import (
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
)

// statuses is the one table from our codes to HTTP.
var statuses = map[arenero.Code]int{
	arenero.Invalid:         http.StatusBadRequest,
	arenero.Unauthenticated: http.StatusUnauthorized,
	arenero.Denied:          http.StatusForbidden,
	arenero.NotFound:        http.StatusNotFound,
	arenero.Conflict:        http.StatusConflict,
	arenero.Exhausted:       http.StatusTooManyRequests,
	arenero.TooLarge:        http.StatusRequestEntityTooLarge,
	arenero.Timeout:         http.StatusGatewayTimeout,
	arenero.Canceled:        499, // nobody is there to read it; for the log
	arenero.Unavailable:     http.StatusServiceUnavailable,
	arenero.Internal:        http.StatusInternalServerError,
}

// Problem is how every error looks: problem+json of RFC 9457 with our code and
// what to do about it.
type Problem struct {
	Title  string       `json:"title" doc:"The status in words"`
	Status int          `json:"status" doc:"The HTTP status"`
	Code   arenero.Code `json:"code" doc:"What kind of failure, for programs"`
	Detail string       `json:"detail" doc:"What went wrong, for people"`
	Hint   string       `json:"hint,omitempty" doc:"What can be done about it"`
}

// Error returns the sentence.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is the HTTP status; huma asks for it.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType names the media type; huma asks for it.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// problemOf translates an error of ours.
func problemOf(err error) *Problem {
	if done, ok := errors.AsType[*Problem](err); ok {
		return done
	}
	code := arenero.CodeOf(err)
	status, ok := statuses[code]
	if !ok {
		code, status = arenero.Internal, http.StatusInternalServerError
	}
	return &Problem{
		Title: title(status), Status: status, Code: code,
		Detail: readable(err.Error(), 4096), Hint: readable(arenero.HintOf(err), 1024),
	}
}

func title(status int) string {
	if t := http.StatusText(status); t != "" {
		return t
	}
	return "Client Closed Request"
}

// codeOf is the table the other way round, for what net/http and huma refuse.
func codeOf(status int) arenero.Code {
	switch status {
	case http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge:
		return arenero.Invalid
	case http.StatusMisdirectedRequest:
		return arenero.Denied
	case http.StatusRequestTimeout:
		return arenero.Timeout
	}
	for code, s := range statuses {
		if s == status {
			return code
		}
	}
	return arenero.Internal
}

// ours turns what huma says of a bad request into a Problem: one sentence with
// the first finding.
func ours(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	status := oneStatus(m.Status)
	detail := m.Detail
	if len(m.Errors) > 0 && m.Errors[0] != nil {
		first := m.Errors[0]
		detail = first.Message
		if first.Location != "" {
			detail = first.Location + ": " + first.Message
		}
		if n := len(m.Errors) - 1; n > 0 {
			detail += " (and more)"
		}
	}
	hint := ""
	switch status {
	case http.StatusBadRequest:
		hint = "see /docs for what this route takes"
	case http.StatusUnsupportedMediaType:
		hint = "send Content-Type: application/json"
	case http.StatusRequestEntityTooLarge:
		hint = "put large data into files of a sandbox: PUT /v1/sandboxes/{id}/files"
	}
	return &Problem{Title: title(status), Status: status, Code: codeOf(status), Detail: readable(detail, 1024), Hint: hint}, nil
}

// oneStatus makes huma's two ways to say that a request is bad one.
func oneStatus(status int) int {
	if status == http.StatusUnprocessableEntity {
		return http.StatusBadRequest
	}
	return status
}

// anyContext is huma.Context under a name that does not hide its method Context.
type anyContext huma.Context

// statusContext writes oneStatus where huma writes its own.
type statusContext struct{ anyContext }

// SetStatus writes the header.
func (c statusContext) SetStatus(status int) { c.anyContext.SetStatus(oneStatus(status)) }

// Unwrap is asked for by the adapter.
func (c statusContext) Unwrap() huma.Context { return c.anyContext }

// readable cuts a text to n bytes and makes control characters visible: it may
// quote what a client or a guest said.
func readable(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
