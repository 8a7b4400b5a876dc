package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/arenero/arenero"
)

// Every code goes over the wire and comes back as it was.
func TestFaultsCross(t *testing.T) {
	seen := map[connect.Code]bool{}
	for _, code := range arenero.Codes() {
		in := arenero.Errorf(code, "do thing", "id-1", "cause").WithHint("try again")
		crossed := ToWire(fmt.Errorf("wrapped: %w", in))
		c := connect.CodeOf(crossed)
		if seen[c] {
			t.Errorf("%s shares %s with another", code, c)
		}
		seen[c] = true
		var out *arenero.Error
		if !errors.As(FromWire("other", crossed), &out) || out.Code != code || out.Op != "do thing" || out.ID != "id-1" ||
			out.Hint != "try again" || out.Err.Error() != "cause" {
			t.Errorf("%s came back as %+v", code, out)
		}
	}
	for err, code := range map[error]arenero.Code{
		context.Canceled: arenero.Canceled, context.DeadlineExceeded: arenero.Timeout, errors.New("x"): arenero.Internal,
		connect.NewError(connect.CodeUnimplemented, errors.New("x")): arenero.Unavailable,
	} {
		if got := arenero.CodeOf(FromWire("op", ToWire(err))); got != code {
			t.Errorf("%v is %s", err, got)
		}
		if got := arenero.CodeOf(FromWire("op", err)); got != code {
			t.Errorf("%v is %s", err, got)
		}
	}
	if ToWire(nil) != nil || FromWire("op", nil) != nil {
		t.Error("nothing became an error")
	}
}

// Whatever a guest says in an error, a terminal and a log are safe from it.
func FuzzFromWire(f *testing.F) {
	f.Add("\x1b[2J\r\n\u202e", "\xff", strings.Repeat("x", 10_000), uint32(3))
	f.Fuzz(func(t *testing.T, msg, op, hint string, code uint32) {
		c := connect.NewError(connect.Code(code), errors.New(msg))
		c.Meta().Set(metaOp, connect.EncodeBinaryHeader([]byte(op)))
		c.Meta().Set(metaHint, hint)
		var out *arenero.Error
		if !errors.As(FromWire("op", c), &out) {
			t.Fatal("not ours")
		}
		for _, s := range []string{out.Error(), out.Hint} {
			if len(s) > 3*3*MaxText || !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\r\n\u202e\x00") {
				t.Fatalf("%q", s)
			}
		}
	})
}
