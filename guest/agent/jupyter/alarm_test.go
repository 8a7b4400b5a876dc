package jupyter

import (
	"sync"
	"testing"
	"time"
)

// A sleep of the sandbox is a jump of its clock; it takes nothing from what is
// left of a deadline.
func TestAlarmDoesNotCountSleep(t *testing.T) {
	var mu sync.Mutex
	var jump time.Duration
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(jump)
	}
	rang := make(chan time.Time, 1)
	start := time.Now()
	a := newAlarm(1500*time.Millisecond, func() { rang <- time.Now() }, now)
	defer a.Stop()
	time.Sleep(100 * time.Millisecond)
	mu.Lock()
	jump = time.Hour
	mu.Unlock()
	select {
	case at := <-rang:
		if at.Sub(start) < 1400*time.Millisecond {
			t.Errorf("it rang after %v", at.Sub(start))
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it never rang")
	}
}

func TestAlarmStops(t *testing.T) {
	rang := make(chan struct{}, 1)
	a := After(50*time.Millisecond, func() { rang <- struct{}{} })
	a.Stop()
	a.Stop()
	select {
	case <-rang:
		t.Error("a stopped alarm rang")
	case <-time.After(200 * time.Millisecond):
	}
}
