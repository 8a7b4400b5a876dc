package gvisor

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// The runtime itself would keep every thread that reads once blocked.
func TestEndIdleThreads(t *testing.T) {
	const many = 60
	var done sync.WaitGroup
	for range many {
		done.Go(func() {
			ts := unix.NsecToTimespec((300 * time.Millisecond).Nanoseconds())
			_ = unix.Nanosleep(&ts, nil) // a system call that holds its thread
		})
	}
	done.Wait()
	before := threads(t)
	if before < many {
		t.Fatalf("%d threads; the test needs more", before)
	}
	endIdleThreads(12)
	after := before
	for range 100 {
		if after = threads(t); after <= 20 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if after > 20 {
		t.Errorf("%d threads before, %d after", before, after)
	}
}

// The program goes on after its pages are given back, and they are its own.
func TestProgramPages(t *testing.T) {
	spans := programPages()
	var size uintptr
	for _, s := range spans {
		size += s.size
	}
	if size < 10<<20 {
		t.Fatalf("found %d bytes of this program in %v", size, spans)
	}
	release(spans)
	runtime.GC()
	if again := programPages(); len(again) != len(spans) {
		t.Errorf("mapped before: %v, after: %v", spans, again)
	}
}
