package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
	"github.com/arenero/arenero/guest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/image"
	"github.com/arenero/arenero/store"
)

// home is a data folder that hosts, one after another, live in: as a daemon that
// is stopped and started.
type home struct{ dir string }

func newHome(t *testing.T) home {
	t.Helper()
	dir, err := os.MkdirTemp("", "home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(filepath.Join(testImages(t), "images"), filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	return home{dir}
}

// testImages is a data folder that has the image "python", warm.
var testImages = func() func(t *testing.T) string {
	var once sync.Once
	return func(t *testing.T) string {
		t.Helper()
		dir := os.Getenv("ARENERO_TEST_DATA")
		if dir == "" {
			dir = "/var/cache/arenero-test"
		}
		once.Do(func() {
			if out, err := exec.Command(built, "image", "build", "python", "--data", dir).CombinedOutput(); err != nil {
				t.Fatalf("build image: %v\n%s", err, out)
			}
		})
		return dir
	}
}()

// open starts a host with the real engine; shut stops it as a daemon stops.
func (m home) open(t *testing.T, c host.Config) (h *host.Host, shut func()) {
	t.Helper()
	bin, err := guest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	agent, digest, err := image.Agent(filepath.Join(m.dir, "agent"), bin)
	if err != nil {
		t.Fatal(err)
	}
	images, err := image.OpenWith(filepath.Join(m.dir, "images"), filepath.Join(m.dir, "states"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c.Engines = map[string]arenero.Engine{"gvisor": gvisor.New(gvisor.Config{Dir: filepath.Join(m.dir, "boxes"), Agent: agent, Log: log})}
	c.Images, c.Store, c.AgentDigest, c.Log = images, db, digest, log
	c.VolumeDir = filepath.Join(m.dir, "volumes")
	if h, err = host.New(c); err != nil {
		t.Fatal(err)
	}
	if err := h.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	var once sync.Once
	shut = func() {
		once.Do(func() {
			stop()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			if err := h.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		shut()
		if !c.Keep {
			return
		}
		c.Keep, c.Now = false, nil
		_, again := m.open(t, c) // ends what was kept
		again()
	})
	return h, shut
}

func me() host.Who { return host.Local() }

func mk(t *testing.T, h *host.Host, spec arenero.Spec) arenero.Sandbox {
	t.Helper()
	sb, err := h.Create(t.Context(), me(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// py runs a cell in the kernel of a sandbox and returns its output.
func py(t *testing.T, h *host.Host, id, code string) string {
	t.Helper()
	out, err := tryPy(t.Context(), h, id, code)
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return strings.TrimSpace(out)
}

func tryPy(ctx context.Context, h *host.Host, id, code string) (string, error) {
	g, err := h.Guest(ctx, me(), id, host.ScopeRun)
	if err != nil {
		return "", err
	}
	if err := h.EnsureKernel(ctx, g, "python", "python"); err != nil {
		return "", err
	}
	x, err := g.Execute(ctx, arenero.Execute{Kernel: "python", Code: code, Timeout: 30 * time.Second})
	if err != nil {
		return "", err
	}
	defer x.Close()
	c := host.NewCollector(1 << 20)
	if err := host.CollectExecution(x, c, nil); err != nil {
		return "", err
	}
	r := c.Result()
	if r.ExitReason != arenero.Exited {
		return "", fmt.Errorf("%s: %s", r.ExitReason, r.Output)
	}
	return r.Output, nil
}

func stateIs(t *testing.T, h *host.Host, id string, want arenero.State) {
	t.Helper()
	if sb, err := h.Get(t.Context(), me(), id); err != nil || sb.State != want {
		t.Fatalf("it is %s (%s) %v, want %s", sb.State, sb.Reason, err, want)
	}
}

// small puts a file system of so many bytes over a folder.
func small(t *testing.T, dir string, size int64) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.Mkdir(filepath.Join(dir, ".tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
}
