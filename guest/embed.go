// Package guest carries the guest agent's binary inside the main one.
package guest

import (
	"embed"

	"github.com/arenero/arenero"
)

//go:generate env CGO_ENABLED=0 go build -C .. -trimpath -ldflags "-s -w" -o guest/bin/guest ./cmd/guest

// The folder, not the file, so that everything compiles before the first build.
//
//go:embed all:bin
var bin embed.FS

// Binary is the guest agent: a static program for the machine this one was built
// for. It is [arenero.Unavailable] in a build that was made without it.
func Binary() ([]byte, error) {
	b, err := bin.ReadFile("bin/guest")
	if err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, "read guest agent", "", "this build does not carry it").
			WithHint("run make build")
	}
	return b, nil
}
