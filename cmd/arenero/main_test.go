package main

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/arenero/arenero/engine/gvisor"
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
	// Builds only if the recipe has changed, and warms only what is cold.
	m := Main{Args: []string{"image", "build", name, "--data", testData()}, Stdin: os.Stdin, Stdout: os.Stderr, Stderr: os.Stderr}
	if code := m.Run(context.Background()); code != 0 {
		t.Fatalf("arenero image build %s: exit status %d", name, code)
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
