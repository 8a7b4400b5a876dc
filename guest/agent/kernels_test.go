package agent_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/agent"
)

// cell is how a cell went.
type cell struct {
	out, err, value string
	failed          *arenero.RunError
	end             arenero.KernelEnd
}

func execute(t testing.TB, g arenero.Guest, e arenero.Execute) (c cell) {
	t.Helper()
	if e.Kernel == "" {
		e.Kernel = "k"
	}
	x, err := g.Execute(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for {
		ev, err := x.Next()
		if errors.Is(err, io.EOF) {
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
		c.out += ev.Stdout
		c.err += ev.Stderr
		if ev.Display != nil {
			c.value += ev.Display.MIME["text/plain"]
		}
		if ev.Input != nil {
			if err := x.Answer(t.Context(), "the answer"); err != nil {
				t.Fatal(err)
			}
		}
		if ev.Error != nil {
			c.failed = ev.Error
		}
		if ev.End != nil {
			c.end = *ev.End
		}
	}
}

func startKernel(t testing.TB, g arenero.Guest) {
	t.Helper()
	if _, err := g.StartKernel(t.Context(), arenero.KernelRequest{Name: "k", Language: "python", Env: map[string]string{"MINE": "yes"}}); err != nil {
		t.Fatal(err)
	}
}

// The whole way: host, link, agent, a real kernel as another user, and back.
func TestKernel(t *testing.T) {
	g := native(t)
	startKernel(t, g)
	_, err := g.StartKernel(t.Context(), arenero.KernelRequest{Name: "k"})
	wantCode(t, err, arenero.Conflict)
	_, err = g.StartKernel(t.Context(), arenero.KernelRequest{Name: "x", Language: "cobol"})
	wantCode(t, err, arenero.NotFound)

	c := execute(t, g, arenero.Execute{Code: "import os,sys\nprint(os.getuid(), os.environ['MINE'])\nprint('bad', file=sys.stderr)\n6*7"})
	uid := "0"
	if os.Geteuid() == 0 {
		uid = "54321"
	}
	if c.out != uid+" yes\n" || c.err != "bad\n" || c.value != "42" || c.end.Reason != arenero.Exited || c.end.ExecutionCount != 1 {
		t.Fatalf("%+v", c)
	}
	if c = execute(t, g, arenero.Execute{Code: "print(input('? '))", AllowStdin: true}); !strings.Contains(c.out, "the answer\n") {
		t.Fatalf("%+v", c)
	}
	if c = execute(t, g, arenero.Execute{Code: "1/0"}); c.failed == nil || c.failed.Name != "ZeroDivisionError" || c.end.Reason != arenero.RaisedError {
		t.Fatalf("%+v", c)
	}
	if c = execute(t, g, arenero.Execute{Code: "x=5\nwhile 1: pass", Timeout: 500 * time.Millisecond}); c.end.Reason != arenero.TimedOut {
		t.Fatalf("%+v", c)
	}
	if c = execute(t, g, arenero.Execute{Code: "x"}); c.value != "5" {
		t.Fatalf("variables are gone: %+v", c)
	}
	list, err := g.ListKernels(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "k" || list[0].PID == 0 {
		t.Fatal(list, err)
	}
	if procs, err := g.ListProcesses(t.Context()); err != nil || len(procs) != 0 {
		t.Fatal("kernels are no processes to a user", procs, err)
	}
	_, err = g.Attach(t.Context(), list[0].PID)
	wantCode(t, err, arenero.NotFound)
	if m, err := g.Complete(t.Context(), "k", "sys.getrec", 10); err != nil || len(m.Matches) == 0 || !strings.Contains(m.Matches[0], "getrecursionlimit") {
		t.Fatal(m, err)
	}
	if m, err := g.Inspect(t.Context(), "k", "len", 3); err != nil || m["text/plain"] == "" {
		t.Fatal(m, err)
	}
	if err := g.RestartKernel(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if c = execute(t, g, arenero.Execute{Code: "x"}); c.failed == nil || c.failed.Name != "NameError" {
		t.Fatalf("%+v", c)
	}
	if err := g.StopKernel(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel's end", func() bool { return gone(list[0].PID) })
	x, err := g.Execute(t.Context(), arenero.Execute{Kernel: "k", Code: "1"})
	if err == nil {
		_, err = x.Next()
		_ = x.Close()
	}
	wantCode(t, err, arenero.NotFound)
}

// A caller that leaves interrupts its cell.
func TestKernelInterruptedByLeaving(t *testing.T) {
	g := native(t)
	startKernel(t, g)
	x, err := g.Execute(t.Context(), arenero.Execute{Kernel: "k", Code: "import time\nprint('up', flush=True)\ntime.sleep(1000)"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Next(); err != nil {
		t.Fatal(err)
	}
	_ = x.Close()
	if c := execute(t, g, arenero.Execute{Code: "1+1"}); c.value != "2" {
		t.Fatalf("%+v", c)
	}
}

// What a cell started ends with its kernel, and a kernel that takes too much
// memory is told as that.
func TestKernelTreeAndMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	g := native(t, func(c *agent.Config) { c.Limits.Memory = 250 << 20 })
	startKernel(t, g)
	file := writable(t) + "/pid"
	code := "import subprocess\nsubprocess.Popen(['setsid','env','-i','/bin/sh','-c','echo $$ > " + file + "; exec sleep 1000'], start_new_session=True)"
	if c := execute(t, g, arenero.Execute{Code: code}); c.end.Reason != arenero.Exited {
		t.Fatalf("%+v", c)
	}
	pid := pidIn(t, file)
	c := execute(t, g, arenero.Execute{Code: "import time\nl=[]\nwhile 1: l.append(b'x'*5000000); time.sleep(0.005)"})
	if c.end.Reason != arenero.OutOfMemory {
		t.Fatalf("%+v", c.end)
	}
	eventually(t, "the end of what it started", func() bool { return gone(pid) })
	if err := g.RestartKernel(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if c := execute(t, g, arenero.Execute{Code: "1+1"}); c.value != "2" {
		t.Fatalf("%+v", c)
	}
}

// After a Wake two copies of a kernel that were one draw different numbers.
func TestWakeReseedsKernels(t *testing.T) {
	g := native(t)
	startKernel(t, g)
	draw := arenero.Execute{Code: "import random, os\nrandom.seed(1)"}
	execute(t, g, draw)
	err := g.Wake(t.Context(), arenero.Wake{Entropy: []byte(strings.Repeat("e", 32)), Env: map[string]string{"TOKEN": "mine"}, Limits: arenero.DefaultLimits()})
	if err != nil {
		t.Fatal(err)
	}
	c := execute(t, g, arenero.Execute{Code: "print(os.environ['TOKEN'], random.random() != 0.13436424411240122)"})
	if c.out != "mine True\n" || c.end.ExecutionCount != 2 {
		t.Fatalf("%+v", c)
	}
}
