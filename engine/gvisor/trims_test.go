package gvisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/guest/dial"
)

// The processes of a box hang on one thread of the Sentry, which ends those that
// idle half a second after its start, and one, three and a half, seven and a half
// seconds after it. A box with a crowd of processes lives through all of them.
func TestBoxOutlivesItsIdleThreads(t *testing.T) {
	enginetest.CheckLeaks(t)
	e := gvisor.New(gvisor.Config{Dir: t.TempDir(), Agent: enginetest.Agent(t)})
	box := arenero.Box{ID: "trims", RootFS: enginetest.Busybox(t), Hostname: "trims", Limits: arenero.Limits{}.WithDefaults()}
	i, err := e.Create(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g, err := dial.Open(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	err = g.Wake(t.Context(), arenero.Wake{
		SandboxID: box.ID, Hostname: box.Hostname, Now: time.Now(), Entropy: make([]byte, 32), Limits: box.Limits,
		User: arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, Workdir: "/workspace",
	})
	if err != nil {
		t.Fatal(err)
	}
	// Forty that live throughout, and many that come and go.
	out, err := enginetest.Output(t.Context(), g, "/bin/sh", "-c", `
		for i in $(seq 40); do sleep 60 & lives="$lives $!"; done
		end=$(($(date +%s) + 9))
		while [ $(date +%s) -lt $end ]; do for i in $(seq 8); do true | cat & done; wait $!; sleep 0.05; done
		for p in $lives; do kill -0 $p || echo dead; kill $p; done 2>/dev/null; echo alive`)
	if err != nil || out != "alive\n" {
		t.Errorf("%q, %v", out, err)
	}
}
