package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/image"
)

func TestMain(m *testing.M) {
	gvisor.Dispatch() // the test binary is the product: it re-executes itself too
	testscript.Main(m, map[string]func(){
		"arenero": main,
	})
}

// testData is a data folder that lives as long as the machine: images are built
// into it once.
func testData() string {
	if dir := os.Getenv("ARENERO_TEST_DATA"); dir != "" {
		return dir
	}
	return "/var/cache/arenero-test"
}

// needImage makes sure that an image is there, and warm.
func needImage(t testing.TB, name string) {
	t.Helper()
	s, err := image.Open(filepath.Join(testData(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	verb := "warm"
	img, err := s.Get(context.Background(), name)
	switch {
	case arenero.CodeOf(err) == arenero.NotFound:
		verb = "build"
	case err != nil:
		t.Fatal(err)
	case len(img.Warm) == 0:
		return
	}
	m := Main{Args: []string{"image", verb, name, "--data", testData()}, Stdin: os.Stdin, Stdout: os.Stderr, Stderr: os.Stderr}
	if code := m.Run(context.Background()); code != 0 {
		t.Fatalf("arenero image %s %s: exit status %d", verb, name, code)
	}
}

// TestScripts runs testdata/*.txtar, which are also the documentation of the
// command line by example.
func TestScripts(t *testing.T) {
	needImage(t, "python")
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: false,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ARENERO_DATA", testData())
			return nil
		},
	})
}
