package arenero

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Code says what kind of failure an [Error] is. Every door has one table from
// Code to its own answer, and a test that the table is complete.
type Code string

// The codes. There are few on purpose: a caller acts on the code, a person reads
// the message and the hint.
const (
	// Invalid: the request can never succeed as it is.
	Invalid Code = "invalid"
	// Unauthenticated: no key, or one that is not known.
	Unauthenticated Code = "unauthenticated"
	// Denied: known, but not allowed.
	Denied Code = "denied"
	// NotFound: no such thing, or not this caller's.
	NotFound Code = "not_found"
	// Conflict: the thing is in a state in which the request makes no sense.
	Conflict Code = "conflict"
	// Exhausted: a quota, a rate or the machine itself is used up.
	Exhausted Code = "exhausted"
	// TooLarge: the request or its answer is over a size bound.
	TooLarge Code = "too_large"
	// Timeout: a deadline of ours ran out.
	Timeout Code = "timeout"
	// Canceled: the caller went away.
	Canceled Code = "canceled"
	// Unavailable: cannot be done here or now; the hint says what would mend it.
	Unavailable Code = "unavailable"
	// Internal: a fault of ours, or of a guest that broke the protocol.
	Internal Code = "internal"
)

// Codes lists every code, for the tables of the doors and their tests.
func Codes() []Code {
	return []Code{
		Invalid, Unauthenticated, Denied, NotFound, Conflict, Exhausted,
		TooLarge, Timeout, Canceled, Unavailable, Internal,
	}
}

// Error is the one error type that crosses package borders.
type Error struct {
	Code Code          // what kind
	Op   string        // what was being done: "create sandbox"
	ID   string        // to what, if it has a name
	Err  error         // why
	Hint string        // what the reader can do about it; may be empty
	Wait time.Duration // after which it may succeed; 0 is not known
}

// Error reads "op id: cause", in lower case. The code and the hint are shown by
// the door or the CLI, each in its own place.
func (e *Error) Error() string {
	var parts []string
	if e.Op != "" {
		op := e.Op
		if e.ID != "" {
			op += " " + e.ID
		}
		parts = append(parts, op)
	} else if e.ID != "" {
		parts = append(parts, e.ID)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	if len(parts) == 0 {
		return string(e.Code)
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error of a code and an operation; format and args describe the
// cause, and %w keeps its code chain intact.
func Errorf(code Code, op, id, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, ID: id, Err: fmt.Errorf(format, args...)}
}

// WithHint returns a copy that tells the reader what to do.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// CodeOf returns the code of the outermost [Error] in the chain: "" for nil,
// [Internal] for an error that carries none.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// HintOf returns the first hint in the chain.
func HintOf(err error) string {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// WithWait returns a copy that says when to try again.
func (e *Error) WithWait(d time.Duration) *Error {
	c := *e
	c.Wait = d
	return &c
}

// WaitOf returns when to try again, from the first error in the chain that says
// so; 0 when none does.
func WaitOf(err error) time.Duration {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return 0
		}
		if e.Wait > 0 {
			return e.Wait
		}
		err = e.Err
	}
	return 0
}
