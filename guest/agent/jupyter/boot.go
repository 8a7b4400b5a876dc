package jupyter

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

//go:embed all:boot
var bootFiles embed.FS

// writeBoot makes an IPYTHONDIR whose default profile loads what we add to
// IPython kernels. Other kernels ignore it.
func writeBoot(dir string) error {
	profile := filepath.Join(dir, "profile_default")
	if err := os.MkdirAll(profile, 0o755); err != nil {
		return err
	}
	entries, err := bootFiles.ReadDir("boot")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		b, err := bootFiles.ReadFile("boot/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(profile, e.Name()), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A tail keeps the last bytes of what a kernel's process wrote by itself.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > tailSize {
		p = p[len(p)-tailSize:]
	}
	t.b = append(t.b, p...)
	if len(t.b) > tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	return n, nil
}

// lastLines is the end of it in printable characters, on one line.
func (t *tail) lastLines(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	s := strings.Join(lines, " | ")
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s), "?")
}
