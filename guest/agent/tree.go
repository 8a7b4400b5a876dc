package agent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Every program the agent starts gets a supplementary group of its own that
// nothing else has. A group is inherited by all children, cannot be given up
// without a capability, and stands in /proc/PID/status: whoever has it belongs to
// that program, whatever he did with sessions, parents and environment.
const firstMark = 0x41520000

// A task is a process as /proc shows it.
type task struct {
	pid, parent int
	uid         uint32
	threads     int
	resident    int64
	mark        uint32 // 0 when none
	stopped     bool
	zombie      bool
}

// tasks reads all processes but the agent.
func (a *Agent) tasks() []task {
	dir, err := os.Open(a.cfg.Proc)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	list := make([]task, 0, len(names))
	buf := make([]byte, 8<<10)
	self := os.Getpid()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		if t, ok := a.task(pid, buf); ok {
			list = append(list, t)
		}
	}
	return list
}

func (a *Agent) task(pid int, buf []byte) (task, bool) {
	b := readInto(a.cfg.Proc+"/"+strconv.Itoa(pid)+"/status", buf)
	return parseStatus(pid, b)
}

func readInto(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	n, _ := unix.Read(fd, buf)
	_ = unix.Close(fd)
	return buf[:max(n, 0)]
}

// parseStatus reads the lines of /proc/PID/status that matter here.
func parseStatus(pid int, b []byte) (task, bool) {
	t := task{pid: pid, parent: -1}
	for line := range bytes.Lines(b) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		f := bytes.Fields(value)
		num := func() int64 {
			if len(f) == 0 {
				return 0
			}
			n, _ := strconv.ParseInt(string(f[0]), 10, 64)
			return n
		}
		switch string(key) {
		case "State":
			if len(f) > 0 {
				t.stopped = f[0][0] == 'T' || f[0][0] == 't'
				t.zombie = f[0][0] == 'Z' || f[0][0] == 'X'
			}
		case "PPid":
			t.parent = int(num())
		case "Uid":
			t.uid = uint32(num())
		case "Threads":
			t.threads = int(num())
		case "VmRSS":
			t.resident = num() << 10
		case "Groups":
			for _, g := range f {
				if n, err := strconv.ParseUint(string(g), 10, 32); err == nil && n >= firstMark && n < firstMark+0x10000 {
					t.mark = uint32(n)
				}
			}
		}
	}
	return t, t.parent >= 0
}

// members are the living processes that belong to p.
func (a *Agent) members(p *process) []task {
	all := a.tasks()
	var out []task
	if p.mark != 0 {
		for _, t := range all {
			if t.mark == p.mark && !t.zombie {
				out = append(out, t)
			}
		}
		return out
	}
	// An agent without the capability to set groups has only this: descent, and
	// the session. It is not an agent that holds back hostile code.
	in := map[int]bool{p.pid: true}
	for grew := true; grew; {
		grew = false
		for _, t := range all {
			sid, _ := unix.Getsid(t.pid)
			if !in[t.pid] && (in[t.parent] || sid == p.pid) {
				in[t.pid], grew = true, true
			}
		}
	}
	for _, t := range all {
		if in[t.pid] && !t.zombie {
			out = append(out, t)
		}
	}
	return out
}

// signalTree sends a signal to everything that belongs to p.
func (a *Agent) signalTree(p *process, sig unix.Signal) {
	for _, t := range a.members(p) {
		_ = unix.Kill(t.pid, sig)
	}
}

// killTree ends everything that belongs to p. A program that forks faster than
// one can kill is first stopped, process by process, until a look finds nobody who
// could still fork.
func (a *Agent) killTree(p *process) {
	frozen := map[int]bool{}
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		list := a.members(p)
		if len(list) == 0 {
			return
		}
		moving := false
		for _, t := range list {
			if !frozen[t.pid] {
				moving = true
				frozen[t.pid] = true
				_ = unix.Kill(t.pid, unix.SIGSTOP)
			}
		}
		if moving && len(list) > 1 {
			continue
		}
		for _, t := range list {
			_ = unix.Kill(t.pid, unix.SIGKILL)
		}
		frozen = map[int]bool{}
		time.Sleep(2 * time.Millisecond)
	}
	a.log.Warn("processes outlive their program", "pid", p.pid)
}
