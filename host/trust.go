package host

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/arenero/arenero/image"
)

// trust remembers which warm snapshots were read and found whole, so that a
// thousand creates do not read the same hundred megabytes a thousand times. It
// holds until a file is touched. The states of sandboxes are read every time.
type trust struct {
	mu    sync.Mutex
	whole map[string]time.Time // folder -> the latest change of a file in it
}

// check reads a state and compares it with its hashes.
func (t *trust) check(dir string, always bool) error {
	changed := lastChange(dir)
	if !always {
		t.mu.Lock()
		at, ok := t.whole[dir]
		t.mu.Unlock()
		if ok && at.Equal(changed) {
			return image.Verify(dir, false)
		}
	}
	if err := image.Verify(dir, true); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.whole == nil {
		t.whole = map[string]time.Time{}
	}
	if !always {
		t.whole[dir] = changed
	}
	return nil
}

func lastChange(dir string) time.Time {
	var last time.Time
	entries, err := os.ReadDir(dir)
	if err != nil {
		return last
	}
	for _, e := range entries {
		if st, err := os.Lstat(filepath.Join(dir, e.Name())); err == nil && st.ModTime().After(last) {
			last = st.ModTime()
		}
	}
	return last
}
