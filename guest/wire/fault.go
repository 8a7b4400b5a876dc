package wire

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
)

// codes pairs each of our codes with the one that stands for it on the wire.
func codes() map[arenero.Code]connect.Code {
	return map[arenero.Code]connect.Code{
		arenero.Invalid:         connect.CodeInvalidArgument,
		arenero.Unauthenticated: connect.CodeUnauthenticated,
		arenero.Denied:          connect.CodePermissionDenied,
		arenero.NotFound:        connect.CodeNotFound,
		arenero.Conflict:        connect.CodeFailedPrecondition,
		arenero.Exhausted:       connect.CodeResourceExhausted,
		arenero.TooLarge:        connect.CodeOutOfRange,
		arenero.Timeout:         connect.CodeDeadlineExceeded,
		arenero.Canceled:        connect.CodeCanceled,
		arenero.Unavailable:     connect.CodeUnavailable,
		arenero.Internal:        connect.CodeInternal,
	}
}

const (
	metaOp   = "Arenero-Op-Bin"
	metaID   = "Arenero-Id-Bin"
	metaHint = "Arenero-Hint-Bin"
	// MaxText bounds each text of an error that the guest sent, in bytes.
	MaxText = 4 << 10
)

// ToWire turns an error of the guest into one that FromWire turns back. The
// operation, the id and the hint travel beside it.
func ToWire(err error) error {
	if err == nil {
		return nil
	}
	var e *arenero.Error
	if !errors.As(err, &e) {
		var c *connect.Error
		switch {
		case errors.As(err, &c):
			return err
		case errors.Is(err, context.Canceled):
			return connect.NewError(connect.CodeCanceled, err)
		case errors.Is(err, context.DeadlineExceeded):
			return connect.NewError(connect.CodeDeadlineExceeded, err)
		}
		return connect.NewError(connect.CodeInternal, err)
	}
	code, ok := codes()[e.Code]
	if !ok {
		code = connect.CodeInternal
	}
	cause := e.Err
	if cause == nil {
		cause = errors.New(string(e.Code))
	}
	c := connect.NewError(code, errors.New(Printable(cause.Error())))
	for key, text := range map[string]string{metaOp: e.Op, metaID: e.ID, metaHint: arenero.HintOf(err)} {
		if text != "" {
			c.Meta().Set(key, connect.EncodeBinaryHeader([]byte(Printable(text))))
		}
	}
	return c
}

// FromWire turns what a call over the wire returned into an *arenero.Error. It
// trusts nothing in it: texts are cut to MaxText and made printable. op names what
// was being done, for errors that do not say it themselves.
func FromWire(op string, err error) error {
	if err == nil {
		return nil
	}
	out := &arenero.Error{Code: arenero.Internal, Op: op}
	var own *arenero.Error
	if errors.As(err, &own) { // the link's own words
		out.Code, out.Err, out.Hint = own.Code, own.Err, own.Hint
	}
	var c *connect.Error
	if !errors.As(err, &c) {
		if own == nil {
			out.Err = errors.New(Printable(err.Error()))
			switch {
			case errors.Is(err, context.Canceled):
				out.Code, out.Err = arenero.Canceled, err
			case errors.Is(err, context.DeadlineExceeded):
				out.Code, out.Err = arenero.Timeout, err
			}
		}
		return out
	}
	for ours, theirs := range codes() {
		if theirs == c.Code() {
			out.Code = ours
		}
	}
	switch c.Code() {
	case connect.CodeAborted, connect.CodeAlreadyExists:
		out.Code = arenero.Conflict
	case connect.CodeUnimplemented:
		out.Code = arenero.Unavailable
	}
	out.Err = errors.New(Printable(c.Message()))
	if out.Code == arenero.Canceled && errors.Is(err, context.Canceled) {
		out.Err = context.Canceled
	}
	if out.Code == arenero.Timeout && errors.Is(err, context.DeadlineExceeded) {
		out.Err = context.DeadlineExceeded
	}
	meta := func(key string) string {
		b, err := connect.DecodeBinaryHeader(c.Meta().Get(key))
		if err != nil {
			return ""
		}
		return Printable(string(b))
	}
	if s := meta(metaOp); s != "" {
		out.Op = s
	}
	out.ID = meta(metaID)
	if out.Hint == "" {
		out.Hint = meta(metaHint)
	}
	return out
}

// Printable cuts text to MaxText and replaces what could mislead a terminal or a
// log: control characters, invalid UTF-8 and marks that turn writing around.
func Printable(s string) string {
	if len(s) > MaxText {
		n := MaxText
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "..."
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
