package gvisor

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Sentry is started with as much haste as there is, and then mostly waits. What
// its start and a restore leave behind (the garbage of decoding a snapshot, and a
// hundred threads that read its pages) would stay for as long as the box does.

// thrift tidies up behind the start of a Sentry and then again, ever more seldom,
// for a while. It is a goroutine of a process that is never joined but killed.
func thrift() {
	program := programPages()
	base := runtime.NumCPU()
	for wait := 500 * time.Millisecond; wait <= time.Minute; wait *= 2 {
		time.Sleep(wait)
		if runtime.GOMAXPROCS(0) > base {
			continue // the pages of a snapshot are being read
		}
		endIdleThreads(2*base + 8)
		debug.FreeOSMemory()
		release(program)
	}
}

type span struct{ start, size uintptr }

// programPages is where code and constants of this program are mapped: most of
// what its start touches is not needed again.
func programPages() []span {
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	var found []span
	for line := range strings.Lines(string(raw)) {
		var start, end uintptr
		f := strings.Fields(line)
		if len(f) < 6 || (f[1] != "r-xp" && f[1] != "r--p") || f[5] != exe {
			continue // what may have been written to must stay
		}
		if n, _ := fmt.Sscanf(f[0], "%x-%x", &start, &end); n == 2 {
			found = append(found, span{start, end - start})
		}
	}
	return found
}

// release unmaps pages of files that were not written to. Nothing is lost: what
// runs next is mapped again from the page cache.
func release(spans []span) {
	for _, s := range spans {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.start, s.size, unix.MADV_DONTNEED)
	}
}

// endIdleThreads ends the threads that the runtime keeps beyond keep. It never
// ends one by itself, unless a goroutine that was bound to it returns: so as many
// are started as there are threads too many, which takes up those that idle, and
// return together. A thread costs its stacks here and in the kernel of the host.
//
// Threads that do not idle are counted too, and for each a new one may live for a
// moment: one for a task of the guest, for which hostTasks has room.
func endIdleThreads(keep int) {
	sample := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	spare := int(sample[0].Value.Uint64()) - keep
	if spare <= 0 {
		return
	}
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range spare {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread() // and never unlocked
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}
