package gvisor

import (
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/container"
)

var _ = container.New

// Main .
func Main() { maincli.Main() }
