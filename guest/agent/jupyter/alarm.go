package jupyter

import (
	"sync"
	"time"
)

// step is how often an alarm looks at the clock, slept how much later than that a
// look must come to mean that the sandbox stood still in between.
const (
	step  = time.Second
	slept = 2 * time.Second
)

// An Alarm goes off when the sandbox has run for a time. While a sandbox sleeps,
// in memory or on disk, nothing in it runs, but its clock goes on and has jumped
// when it wakes: that time does not count.
type Alarm struct {
	mu    sync.Mutex
	f     func()
	timer *time.Timer
	left  time.Duration
	set   time.Time
	wait  time.Duration // what the timer was set to
	off   bool
	now   func() time.Time
}

// After calls f, in a goroutine of its own, when the sandbox has run for d. The
// caller stops the alarm when it is of no use any more.
func After(d time.Duration, f func()) *Alarm { return newAlarm(d, f, time.Now) }

func newAlarm(d time.Duration, f func(), now func() time.Time) *Alarm {
	a := &Alarm{f: f, left: d, now: now}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wait, a.set = min(d, step), now()
	a.timer = time.AfterFunc(a.wait, a.look)
	return a
}

// Stop keeps the alarm from going off. It is idempotent.
func (a *Alarm) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.off = true
	a.timer.Stop()
}

func (a *Alarm) look() {
	a.mu.Lock()
	now := a.now()
	passed := now.Sub(a.set)
	if passed > a.wait+slept {
		passed = a.wait
	}
	a.left -= passed
	due := a.left <= 0 && !a.off
	if a.left > 0 && !a.off {
		a.wait, a.set = min(a.left, step), now
		a.timer.Reset(a.wait)
	}
	a.mu.Unlock()
	if due {
		a.f()
	}
}
