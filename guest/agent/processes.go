package agent

import (
	"context"
	"sync"

	"github.com/arenero/arenero"
)

// find returns a process by pid, also one that has just ended.
func (a *Agent) find(pid int64) (*process, error) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	if p := a.procs[int(pid)]; p != nil && !p.kernel {
		return p, nil
	}
	for _, p := range a.late {
		if int64(p.pid) == pid {
			return p, nil
		}
	}
	return nil, arenero.Errorf(arenero.NotFound, "find process", "", "no process of ours has the pid %d", pid)
}

// retire moves a process from the running to the ended.
func (a *Agent) retire(p *process) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	if a.procs[p.pid] == p {
		delete(a.procs, p.pid)
	}
	if p.kernel {
		return
	}
	a.late = append([]*process{p}, a.late[:min(len(a.late), maxEnded-1)]...)
}

// takeMark returns a group that no living program has.
func (a *Agent) takeMark() uint32 {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	for {
		a.lastMark = (a.lastMark + 1) & 0xffff
		m := firstMark + a.lastMark
		if !a.marks[m] {
			a.marks[m] = true
			return m
		}
	}
}

func (a *Agent) dropMark(m uint32) {
	a.procMu.Lock()
	defer a.procMu.Unlock()
	delete(a.marks, m)
}

// end cancels everything; used when the agent itself ends.
func (a *Agent) endProcesses(ctx context.Context) {
	a.procMu.Lock()
	list := make([]*process, 0, len(a.procs))
	for _, p := range a.procs {
		list = append(list, p)
	}
	a.procMu.Unlock()
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() {
			p.cancelled.Store(true)
			a.killTree(p)
			select {
			case <-p.done:
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}
