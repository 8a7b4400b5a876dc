package image

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// buildHere says to the test binary that it is a build in the folder it is in.
const buildHere = "IMAGE_TEST_BUILD"

func TestMain(m *testing.M) {
	if os.Getenv(buildHere) != "" {
		os.Exit(buildAsChild())
	}
	code := m.Run()
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// testRecipe has a bit of everything.
const testRecipe = `
name: test/small:1
apt: [python3]
pip: [six == 1.16.0]
files:
  - path: /usr/local/share/jupyter/kernels/toy/kernel.json
    content: '{"argv": ["/bin/toy"], "display_name": "Toy", "language": "Toy"}'
  - path: /usr/local/bin/hello
    content: "#!/bin/sh\necho hello\n"
    mode: "0755"
run:
  - [sh, -c, "id -u > /opt/uid; grep CapBnd /proc/self/status > /opt/caps; chmod 4755 /usr/local/bin/hello"]
  - [python3, -c, "import six; print(six.__version__)"]
env: {LANG: C.UTF-8, GREETING: "hello = world"}
user: worker
workdir: /srv/work
start: [/usr/local/bin/hello, now]
warm: [{name: toy, language: toy, code: "1"}]
`

func recipe(t testing.TB, text string) Recipe {
	t.Helper()
	r, err := ParseRecipe([]byte(text), "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// shared is the one store that the tests which need a real build have in common.
var shared struct {
	once  sync.Once
	dir   string
	err   error
	img   [2]arenero.Image
	steps [2][]string
	took  time.Duration
}

// sharedStore builds testRecipe once, by two stores on one folder at once, as
// two processes would.
func sharedStore(t *testing.T) *Store {
	t.Helper()
	shared.once.Do(func() {
		shared.dir, shared.err = os.MkdirTemp("", "image-test-") // outlives the test that makes it
		if shared.err != nil {
			return
		}
		r := recipe(t, strings.Replace(testRecipe, "user: worker", "", 1))
		begun := time.Now()
		var errs [2]error
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				s, err := Open(shared.dir)
				if err == nil {
					shared.img[i], err = s.Build(context.Background(), r, func(step string, _, _ int64) {
						if l := shared.steps[i]; len(l) == 0 || l[len(l)-1] != step {
							shared.steps[i] = append(l, step)
						}
					})
				}
				errs[i] = err
			})
		}
		wg.Wait()
		shared.took = time.Since(begun)
		for _, err := range errs {
			if err != nil {
				shared.err = err
			}
		}
	})
	if shared.err != nil {
		t.Fatalf("shared build: %v (hint: %s)", shared.err, arenero.HintOf(shared.err))
	}
	s, err := Open(shared.dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTwoBuildsOfOneName(t *testing.T) {
	s := sharedStore(t)
	t.Logf("built in %s: %q", shared.took, shared.steps)
	if shared.img[0].Digest != shared.img[1].Digest || !shared.img[0].Created.Equal(shared.img[1].Created) {
		t.Errorf("two results: %+v and %+v", shared.img[0], shared.img[1])
	}
	built := 0
	for _, steps := range shared.steps {
		if slices.Contains(steps, "write image") {
			built++
		}
	}
	if built != 1 {
		t.Errorf("%d of 2 were built, want 1", built)
	}
	nothingHalfMade(t, s, 1)
}

// nothingHalfMade checks that a store holds whole images and nothing else.
func nothingHalfMade(t *testing.T, s *Store, images int) {
	t.Helper()
	for sub, want := range map[string]int{"tmp": 0, "blobs": images, "names": images} {
		entries, err := os.ReadDir(s.path(sub))
		if err != nil || len(entries) != want {
			t.Errorf("%s holds %v, want %d: %v", sub, entries, want, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), s.path("tmp")) {
		t.Errorf("mounts stay: %v", err)
	}
}

func TestBuiltImage(t *testing.T) {
	s := sharedStore(t)
	img, err := s.Get(t.Context(), "test/small:1")
	if err != nil {
		t.Fatal(err)
	}
	if img.User != (arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}) {
		t.Errorf("user %+v", img.User)
	}
	if len(img.Kernels) != 1 || img.Kernels[0] != (arenero.KernelSpec{Name: "toy", Language: "toy", Display: "Toy"}) {
		t.Errorf("kernels %+v", img.Kernels)
	}
	if img.Env["GREETING"] != "hello = world" || img.Workdir != "/srv/work" || len(img.Start) != 2 || img.Warm[0].Language != "toy" {
		t.Errorf("manifest %+v", img)
	}
	dir := mountImage(t, img.RootFS)
	for path, mode := range map[string]fs.FileMode{
		"proc": 0o555, "dev": 0o755, "sys": 0o555, "run": 0o755, "tmp": 0o777 | fs.ModeSticky, "var/tmp": 0o777 | fs.ModeSticky,
		".arenero": 0o755, "disk": 0o755, "workspace": 0o755, "home/user": 0o755, "srv/work": 0o755,
	} {
		info, err := os.Lstat(filepath.Join(dir, path))
		if err != nil || !info.IsDir() || info.Mode().Perm()|info.Mode()&fs.ModeSticky != mode {
			t.Errorf("%s: %v %v", path, info, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "workspace"), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("workspace belongs to %d:%d", st.Uid, st.Gid)
	}
	for path, want := range map[string]string{
		"etc/machine-id": "", "opt/uid": "0\n", "usr/local/bin/hello": "#!/bin/sh\necho hello\n",
		// CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID and nothing else
		"opt/caps": "CapBnd:\t00000000000000fb\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("%s holds %q: %v", path, got, err)
		}
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// Byte code that is not taken would be compiled anew by every sandbox.
	cmd := exec.Command("chroot", dir, "/usr/bin/python3", "-v", "-c", "import json, six")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "six.cpython") {
		t.Errorf("python in the image: %v\n%s", err, clean(string(out), 20))
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "# code object from") && !strings.Contains(line, ".pyc'") {
			t.Errorf("not compiled: %s", line)
		}
	}
}

func TestTheSameRecipeGivesTheSameDigest(t *testing.T) {
	first := sharedStore(t)
	a, err := first.Get(t.Context(), "test/small:1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Build(t.Context(), recipe(t, strings.Replace(testRecipe, "user: worker", "", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest == b.Digest {
		return
	}
	x, y := mountImage(t, a.RootFS), mountImage(t, b.RootFS)
	out, _ := exec.Command("diff", "-r", "--brief", "--no-dereference", x, y).CombinedOutput()
	t.Errorf("%s and %s:\n%s", a.Digest, b.Digest, clean(string(out), 40))
}

// buildAsChild is the child of the tests below.
func buildAsChild() int {
	s, err := Open(".")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r, err := LoadRecipe("minimal")
	if err != nil {
		return 1
	}
	_, err = s.Build(context.Background(), r, func(step string, _, _ int64) { fmt.Println(step) })
	fmt.Println("ended", err)
	return 0
}

func TestAKilledBuildLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Dir = append(os.Environ(), buildHere+"=1"), dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	seen := ""
	for lines.Scan() && !strings.Contains(seen, "extracting archives") {
		seen += lines.Text() + "\n"
	}
	if !strings.Contains(seen, "extracting archives") {
		t.Fatalf("the build ended: %s", seen)
	}
	s := &Store{dir: dir}
	if left, _ := os.ReadDir(s.path("tmp")); len(left) == 0 {
		t.Fatal("nothing was being made")
	}
	// While it lives, nobody sweeps it.
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.path("tmp")); len(left) == 0 {
		t.Fatal("the work of a living process was swept")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// The processes of the build die with it; the last one lets go of the lock.
	deadline := time.Now().Add(30 * time.Second)
	for {
		if s, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		left, _ := os.ReadDir(s.path("tmp"))
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
		time.Sleep(100 * time.Millisecond)
	}
	nothingHalfMade(t, s, 0)
	if _, err := s.Get(t.Context(), "minimal"); arenero.CodeOf(err) != arenero.NotFound || !strings.Contains(arenero.HintOf(err), "image build minimal") {
		t.Errorf("get: %v, hint %q", err, arenero.HintOf(err))
	}
	noProcessIn(t, dir)
}

// noProcessIn checks that no process works below a folder.
func noProcessIn(t *testing.T, dir string) {
	t.Helper()
	roots, _ := filepath.Glob("/proc/[0-9]*/root")
	for _, r := range roots {
		if to, err := os.Readlink(r); err == nil && strings.HasPrefix(to, dir) {
			t.Errorf("%s still works in %s", r, to)
		}
	}
}

func TestBuildNeedsRoot(t *testing.T) {
	// The test binary lies where only root can go, so a copy.
	dir, err := os.MkdirTemp("", "image-test-") // others than root must get there
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "test")
	if err := copyFile(os.Args[0], binary); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{dir: 0o777, binary: 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary)
	cmd.Env, cmd.Dir = append(os.Environ(), buildHere+"=1", "GOCOVERDIR="+dir), dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "only root can unpack a system") {
		t.Errorf("%v\n%s", err, out)
	}
	nothingHalfMade(t, &Store{dir: dir}, 0)
}

func TestACanceledBuildLeavesNothing(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := LoadRecipe("minimal")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(ctx, r, func(step string, _, _ int64) {
		if strings.Contains(step, "extracting") {
			cancel()
		}
	})
	if arenero.CodeOf(err) != arenero.Canceled {
		t.Errorf("error %v", err)
	}
	nothingHalfMade(t, s, 0)
	noProcessIn(t, s.dir)
}

// smallDisk mounts a file system of so many bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestAFullDisk(t *testing.T) {
	for _, size := range []string{"16m", "90m"} { // before it begins, and in the middle
		s, err := Open(smallDisk(t, size))
		if err != nil {
			t.Fatal(err)
		}
		r, err := LoadRecipe("minimal")
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Build(t.Context(), r, nil)
		if arenero.CodeOf(err) != arenero.Exhausted || arenero.HintOf(err) == "" || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%s: code %s, %v", size, arenero.CodeOf(err), err)
		}
		nothingHalfMade(t, s, 0)
	}
}

func TestBuildFailures(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]arenero.Code{
		"name: x\napt: [no-such-package-anywhere]":          arenero.Invalid,
		"name: x\ndebian: {mirror: 'http://127.0.0.1:1/d'}": arenero.Unavailable,
	} {
		_, err := s.Build(t.Context(), recipe(t, text), nil)
		if arenero.CodeOf(err) != want || arenero.HintOf(err) == "" {
			t.Errorf("%q: code %s, %v", text, arenero.CodeOf(err), err)
		}
		if data, jerr := json.Marshal(err.Error()); jerr != nil || strings.Contains(string(data), `\u001b`) {
			t.Errorf("an escape sequence in %s", data)
		}
	}
	nothingHalfMade(t, s, 0)
}
