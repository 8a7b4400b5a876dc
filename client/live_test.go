package client_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/door/rest"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/store"
)

func TestMain(m *testing.M) {
	enginetest.LocalAgent()
	os.Exit(m.Run())
}

// serve starts a real server, with real agents and kernels in boxes without walls,
// and names it in the environment, where the examples look for it.
func serve(t *testing.T) {
	t.Helper()
	db, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(host.Config{
		Engines: map[string]arenero.Engine{"local": enginetest.Local(t)}, DefaultEngine: "local", Images: enginetest.LocalImages(t), Store: db,
	})
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := h.LocalKey(context.Background(), t.TempDir()+"/key")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- rest.New(rest.Config{Host: h, Version: "test"}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		for _, err := range []error{<-served, h.Close(context.Background()), db.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Setenv("ARENERO_URL", "http://"+l.Addr().String())
	t.Setenv("ARENERO_API_KEY", key)
}

// printed is what a function writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	said := make(chan string)
	go func() { // joined below
		b, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		said <- string(b)
	}()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	f()
	w.Close()
	return <-said
}

// What the documentation shows is true.
func TestExamples(t *testing.T) {
	serve(t)
	for name, tc := range map[string]struct {
		run  func()
		want string
	}{
		"Client.Execute": {ExampleClient_Execute, "exited 7\n\n"},
		"Client.Create":  {ExampleClient_Create, "42\n"},
		"Kernel.Stream":  {ExampleKernel_Stream, "0\n1\n2\nended: exited\n"},
		"Sandbox.Exec":   {ExampleSandbox_Exec, "a\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := printed(t, tc.run); got != tc.want {
				t.Errorf("it printed %q, want %q", got, tc.want)
			}
		})
	}
}
