package gvisor_test

import (
	"testing"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/enginetest"
)

func TestEngine(t *testing.T) {
	agent := enginetest.Agent(t)
	enginetest.Run(t, enginetest.Busybox(t), func(_ testing.TB, dir string) arenero.Engine {
		return gvisor.New(gvisor.Config{Dir: dir, Agent: agent})
	})
}
