package agent

import (
	"errors"

	"golang.org/x/sys/unix"
)

// start forks s and makes a process of it that will be waited for. As PID 1 the
// agent waits for everybody, orphans included; otherwise only for its own
// children, since it shares the process with others who wait for theirs.
func (a *Agent) fork(s *spawn, p *process) error {
	a.procMu.Lock() // a child that ends at once must find its entry
	defer a.procMu.Unlock()
	pid, err := s.start()
	if err != nil {
		if pid > 0 && !a.cfg.Init {
			_, _ = wait(pid)
		}
		return err
	}
	p.pid = pid
	a.procs[pid] = p
	a.starts.Add(1)
	if a.cfg.Init {
		select {
		case a.forked <- struct{}{}:
		default:
		}
		return nil
	}
	a.wg.Go(func() {
		if status, err := wait(pid); err == nil {
			p.ended(status)
		}
	})
	return nil
}

func wait(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, err
		}
	}
}

// reap waits for all children, for as long as the sandbox lives.
func (a *Agent) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // no child at all
			<-a.forked
		default:
			a.procMu.Lock()
			p := a.procs[pid]
			a.procMu.Unlock()
			if p != nil {
				p.ended(status)
			}
		}
	}
}
