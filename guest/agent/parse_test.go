package agent

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero/guest/wire"
)

func TestParseStatus(t *testing.T) {
	b := []byte("Name:\tx\nState:\tT (stopped)\nTgid:\t9\nPid:\t9\nPPid:\t4\nUid:\t1000\t1000\t1000\t1000\nGroups:\t77 1095892999 \nVmRSS:\t  12 kB\nThreads:\t3\n")
	got, ok := parseStatus(9, b)
	want := task{pid: 9, parent: 4, uid: 1000, threads: 3, resident: 12 << 10, mark: 1095892999, stopped: true}
	if !ok || got != want {
		t.Fatalf("%+v", got)
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if got, ok = parseStatus(1, own); !ok || got.parent != os.Getppid() || got.threads < 1 || got.resident == 0 {
		t.Fatalf("%+v", got)
	}
}

// A program may be called anything, also what looks like a line of its own status.
func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\tx\nPPid:\t4\nGroups:\t1 2\nVmRSS:\nThreads:\nState:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, ok := parseStatus(1, b); ok && got.parent < 0 {
			t.Fatalf("%+v", got)
		}
		if parseMeminfo(b) < 0 {
			t.Fatal("negative memory")
		}
	})
}

func TestParseMeminfo(t *testing.T) {
	b := []byte("MemTotal: 100 kB\nActive(anon):    2 kB\nInactive(anon): 3 kB\nInactive(file): 4 kB\nAnonPages: 9 kB\n")
	if got := parseMeminfo(b); got != 5<<10 {
		t.Fatal(got)
	}
}

// Readers at any pace, coming and going, see what was written in its order.
func TestOutput(t *testing.T) {
	o := newOutput(1 << 20)
	var want [2]bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&want[i%2], "%d %s\n", i, strings.Repeat("x", i%300))
	}
	var wg sync.WaitGroup
	for pace := range 4 {
		r := o.tap()
		wg.Go(func() {
			defer r.close()
			var got [2]bytes.Buffer
			for n := 0; ; n++ {
				stream, data, exit := r.next()
				if exit != nil {
					break
				}
				got[stream].Write(data)
				if n%50 == pace {
					time.Sleep(time.Millisecond)
				}
			}
			for s := range got {
				if !bytes.Equal(got[s].Bytes(), want[s].Bytes()) {
					t.Errorf("pace %d, stream %d: %d bytes of %d", pace, s, got[s].Len(), want[s].Len())
				}
			}
		})
	}
	quitter := o.tap()
	wg.Go(func() {
		for range 3 {
			quitter.next()
		}
		quitter.close()
	})
	for i := range 2000 {
		o.write(i%2, fmt.Appendf(nil, "%d %s\n", i, strings.Repeat("x", i%300)))
	}
	o.end(&wire.ProcessExit{})
	wg.Wait()
}

func TestOutputIsBounded(t *testing.T) {
	o := newOutput(100 << 10)
	p := bytes.Repeat([]byte("y"), 1000)
	o.write(stderr, []byte("first"))
	for range 100_000 {
		o.write(stdout, p)
	}
	size := 0
	for _, c := range o.chunks {
		size += cap(c.data)
	}
	if size > 400<<10 || o.held[stdout] < 100<<10 || o.held[stderr] != 5 {
		t.Fatal(size, o.held)
	}
}

func TestEnviron(t *testing.T) {
	if got := parseEnv([]string{"A=1", "B", "=x", "C=2=3"}); len(got) != 2 || got["C"] != "2=3" {
		t.Fatal(got)
	}
	id := identity{workdir: "/w"}
	id.user.Home = "/h"
	for in, want := range map[string]string{"": "/w", "a": "/w/a", "../a": "/w/../a", "~": "/h", "~/x": "/h/x", "/x": "/x", "~x": "/w/~x"} {
		if got := id.path(in); got != want {
			t.Errorf("%q is %q", in, got)
		}
	}
}
