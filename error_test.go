package arenero_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/arenero/arenero"
)

func TestErrorReads(t *testing.T) {
	for want, err := range map[string]*arenero.Error{
		"create sandbox sbx-1: disk is full": arenero.Errorf(arenero.Exhausted, "create sandbox", "sbx-1", "disk is full"),
		"create sandbox: disk is full":       arenero.Errorf(arenero.Exhausted, "create sandbox", "", "disk is full"),
		"sbx-1: gone":                        arenero.Errorf(arenero.NotFound, "", "sbx-1", "gone"),
		"get image python":                   {Code: arenero.NotFound, Op: "get image", ID: "python"},
		"not_found":                          {Code: arenero.NotFound},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCodeOf(t *testing.T) {
	missing := arenero.Errorf(arenero.NotFound, "open image", "x", "%w", fs.ErrNotExist)
	outer := arenero.Errorf(arenero.Unavailable, "create sandbox", "y", "%w", missing)
	for name, c := range map[string]struct {
		err  error
		want arenero.Code
	}{
		"nil":          {nil, ""},
		"foreign":      {errors.New("x"), arenero.Internal},
		"own":          {missing, arenero.NotFound},
		"wrapped":      {fmt.Errorf("while testing: %w", missing), arenero.NotFound},
		"outer counts": {outer, arenero.Unavailable},
	} {
		if got := arenero.CodeOf(c.err); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if !errors.Is(outer, fs.ErrNotExist) {
		t.Error("the chain is broken")
	}
}

func TestHintOf(t *testing.T) {
	plain := arenero.Errorf(arenero.NotFound, "get image", "x", "no such image")
	hinted := plain.WithHint("run %s", "arenero image build x")
	if plain.Hint != "" {
		t.Error("WithHint changed the original")
	}
	for want, err := range map[string]error{
		"":                          plain,
		"run arenero image build x": hinted,
		"start the daemon":          arenero.Errorf(arenero.Internal, "run", "", "%w", hinted).WithHint("start the daemon"),
	} {
		if got := arenero.HintOf(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	deep := fmt.Errorf("b: %w", arenero.Errorf(arenero.Internal, "a", "", "%w", hinted))
	if got := arenero.HintOf(deep); got != hinted.Hint {
		t.Errorf("the inner hint was lost: %q", got)
	}
	if got := arenero.HintOf(nil); got != "" {
		t.Errorf("nil has the hint %q", got)
	}
}

func TestCodesAreDistinct(t *testing.T) {
	seen := map[arenero.Code]bool{}
	for _, c := range arenero.Codes() {
		if seen[c] {
			t.Errorf("%s stands twice", c)
		}
		seen[c] = true
	}
}
