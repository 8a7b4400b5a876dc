package guest

import (
	"bytes"
	"os"
	"testing"

	"github.com/arenero/arenero"
)

// A build with the agent carries it; one without says what to do.
func TestBinary(t *testing.T) {
	b, err := Binary()
	if _, missing := os.Stat("bin/guest"); missing != nil {
		if arenero.CodeOf(err) != arenero.Unavailable || arenero.HintOf(err) == "" {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, []byte("\x7fELF")) || len(b) > 13<<20 {
		t.Fatalf("%d bytes", len(b))
	}
}
