package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// errStopped is the cause of a context that a signal ended.
var errStopped = errors.New("stopped by a signal")

// signals makes Ctrl-C interrupt the program and, the second time, end it. Other
// signals that ask us to go end it at once. Whatever is under way is then taken
// down: a run leaves nothing behind. Call stop at the end.
func (r *running) signals(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1)
		signal.Notify(ch, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE) // a write then fails, and the sandbox is taken down in order
	done := make(chan struct{})
	go func() { // joined by stop
		defer close(done)
		for sig := range ch {
			if first := !r.interrupted.Swap(true); first && r.started.Load() && sig == syscall.SIGINT {
				r.interrupts <- struct{}{} // holds one
				continue
			}
			cancel(errStopped)
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(ch)
		<-done
		cancel(nil)
	}
}

func getenv(key string) string { return os.Getenv(key) }
