package gvisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// watch starts the one goroutine that waits for the Sentry to end; it is joined
// by ended. child says that the Sentry is this process's own child, whose status
// must be collected. Later calls do nothing.
func (i *Instance) watch(child bool) {
	i.watcher.Do(func() {
		i.mu.Lock()
		pid, started := i.rec.PID, i.rec.Started
		i.mu.Unlock()
		if now, err := startTime(pid); pid == 0 || err != nil || now != started {
			i.finish(arenero.Exit{Code: 128 + int(unix.SIGKILL), Reason: "it was not running"})
			return
		}
		fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
		if err != nil {
			i.finish(arenero.Exit{Code: 128 + int(unix.SIGKILL), Reason: "it was not running"})
			return
		}
		if log, err := openLog(i.dir); err == nil {
			read := make(chan struct{})
			go func() { // ends by the deadline below
				defer close(read)
				_, _ = i.agentLog.ReadFrom(log)
			}()
			go i.await(fd, pid, child, func() {
				_ = log.SetReadDeadline(time.Now())
				<-read
				i.agentLog.drain(i.dir)
				log.Close() // a pipe that nobody holds forgets
			})
			return
		}
		go i.await(fd, pid, child, func() {})
	})
}

// await waits for the process to end; then heard takes in what it said last.
func (i *Instance) await(fd, pid int, child bool, heard func()) {
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if conn, err := f.SyscallConn(); err == nil {
		// A pidfd becomes readable when the process has ended; the runtime's
		// poller waits, so that a sleeping box costs no thread.
		_ = conn.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			return n > 0 || (err != nil && err != unix.EINTR)
		})
	}
	code := 128 + int(unix.SIGKILL)
	if child {
		var ws syscall.WaitStatus
		for {
			_, err := syscall.Wait4(pid, &ws, 0, nil)
			if err == syscall.EINTR {
				continue
			}
			if err == nil {
				code = statusCode(ws)
			}
			break
		}
	}
	heard()
	i.mu.Lock()
	destroyed := i.destroyed
	i.mu.Unlock()
	exit := arenero.Exit{Code: code, Destroyed: destroyed, OutOfMemory: i.group.oomKills() > 0}
	switch {
	case exit.OutOfMemory:
		exit.Reason = "killed by the memory limit of the sandbox"
	case destroyed:
		exit.Reason = "destroyed"
	default:
		exit.Reason = fmt.Sprintf("the engine's process ended with status %d", code)
		if tail := i.agentLog.tail(); tail != "" {
			exit.Reason += ": " + strconv.QuoteToASCII(tail)
		}
	}
	i.finish(exit)
}

func (i *Instance) finish(x arenero.Exit) {
	i.exit = x
	close(i.ended)
}

func statusCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// startTime is when a process started, in clock ticks since boot (proc(5), stat
// field 22). A zombie counts as gone.
func startTime(pid int) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold anything.
	_, rest, ok := strings.Cut(string(raw[bytes.LastIndexByte(raw, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("process %d: stat not understood", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// descendants lists the processes below pid.
func descendants(pid int) []int {
	var all []int
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	if err != nil {
		return nil
	}
	for _, file := range tasks {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}
