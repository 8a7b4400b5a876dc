// Command bench measures the figures of bench/README.md on this machine, side by
// side in one run, and prints them as Markdown. Run it as root with nothing else
// running: `make bench`. It needs bin/arenero, the image python in
// $ARENERO_DATA, and for the peers runc and a kernel with EROFS.
package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

//go:embed workload.py
var workload []byte

//go:embed kernel.py
var kernel []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type house struct {
	*client.Client

	bin, data string
	pid       int
}

func run(ctx context.Context) error {
	bin, err := filepath.Abs("bin/arenero")
	if err != nil {
		return err
	}
	data := os.Getenv("ARENERO_DATA")
	if data == "" {
		data = "/var/lib/arenero"
	}
	if out, err := exec.CommandContext(ctx, bin, "image", "build", "python", "--data", data).CombinedOutput(); err != nil {
		return fmt.Errorf("image python: %w: %s", err, out)
	}
	host, _ := os.Hostname()
	raw, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%s, %s, %d CPUs, load %s\n\n", time.Now().Format("2006-01-02 15:04"), host, runtime.NumCPU(), strings.Fields(string(raw))[0])
	fmt.Println("| what | median | p99 | runs |\n|---|---|---|---|")

	if err := commands(ctx, bin, data); err != nil {
		return err
	}
	h, err := serve(ctx, bin, data)
	if err != nil {
		return err
	}
	defer h.stop()
	if err := h.executes(ctx); err != nil {
		return err
	}
	peer, err := mountPeer(ctx, bin, data)
	if err != nil {
		fmt.Printf("| peers | left out: %v | | |\n", err)
	} else {
		defer peer.close()
		times, err := peer.kernel(ctx)
		if err != nil {
			return err
		}
		row("execute `1+1`, jupyter_client in a runc container", times)
	}
	if err := h.life(ctx); err != nil {
		return err
	}
	if err := h.streams(ctx); err != nil {
		return err
	}
	if err := h.memory(ctx); err != nil {
		return err
	}
	return h.overhead(ctx, peer)
}

func row(what string, times []time.Duration) {
	slices.Sort(times)
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	fmt.Printf("| %s | %s | %s | %d |\n", what, ms(times[len(times)/2]), ms(times[(len(times)*99)/100]), len(times))
}

func commands(ctx context.Context, bin, data string) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "script.py")
	if err := os.WriteFile(script, []byte("import numpy, pandas\nprint(pandas.Series(numpy.arange(3)).sum())\n"), 0o600); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"`arenero run -- python3 -c 'print(1)'`, whole process", []string{"run", "--data", data, "--", "python3", "-c", "print(1)"}},
		{"`arenero run` of a script with numpy and pandas, whole process", []string{"run", "--data", data, script}},
	} {
		var times []time.Duration
		for i := range 21 {
			start := time.Now()
			if out, err := exec.CommandContext(ctx, bin, c.args...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c.what, err, out)
			}
			if i > 0 {
				times = append(times, time.Since(start))
			}
		}
		row(c.what, times)
	}
	return nil
}

func serve(ctx context.Context, bin, data string) (*house, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(data, "images"), filepath.Join(dir, "images")); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, bin, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--on-stop", "kill", "--pool-max", "0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		return nil, fmt.Errorf("the daemon said %q", line)
	}
	key, err := exec.CommandContext(ctx, bin, "key", "show", "--data", dir).Output()
	if err != nil {
		return nil, err
	}
	return &house{Client: client.New(url, strings.TrimSpace(string(key))), bin: bin, data: dir, pid: cmd.Process.Pid}, nil
}

func (h *house) stop() {
	p, err := os.FindProcess(h.pid)
	if err == nil {
		_ = p.Signal(syscall.SIGTERM)
		_, _ = p.Wait()
	}
	os.RemoveAll(h.data)
}

// life is what a user measures on a machine of their own.
func (h *house) life(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, h.bin, "bench", "-n", "50", "--forks", "10", "--burst", "20", "--json")
	cmd.Env = append(os.Environ(), "ARENERO_URL="+h.URL, "ARENERO_API_KEY="+h.Key)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("arenero bench: %w", err)
	}
	var rows []struct {
		What   string  `json:"what"`
		Unit   string  `json:"unit"`
		Median float64 `json:"median"`
		P99    float64 `json:"p99"`
		Runs   int     `json:"runs"`
	}
	if err := json.Unmarshal(out, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		fmt.Printf("| %s | %.1f %s | %.1f %s | %d |\n", r.What, r.Median, r.Unit, r.P99, r.Unit, r.Runs)
	}
	return nil
}

func (h *house) executes(ctx context.Context) error {
	var creates, firsts []time.Duration
	for range 20 {
		start := time.Now()
		sb, err := h.Create(ctx, client.Spec{})
		if err != nil {
			return err
		}
		creates = append(creates, time.Since(start))
		if _, err := sb.Kernel("python").Execute(ctx, client.Cell{Code: "print(1)"}); err != nil {
			return err
		}
		firsts = append(firsts, time.Since(start))
		if err := sb.Kill(ctx); err != nil {
			return err
		}
	}
	row("create over HTTP, restored from the warm image", creates)
	row("create and first `print(1)` in Python, over HTTP", firsts)
	for _, cpus := range []float64{1, 2} {
		sb, err := h.Create(ctx, client.Spec{Limits: arenero.Limits{CPUs: cpus}})
		if err != nil {
			return err
		}
		var cells, execs []time.Duration
		for i := range 220 {
			start := time.Now()
			if _, err := sb.Kernel("python").Execute(ctx, client.Cell{Code: "1+1"}); err != nil {
				return err
			}
			if i >= 20 {
				cells = append(cells, time.Since(start))
			}
		}
		for range 50 {
			start := time.Now()
			if _, err := sb.Exec(ctx, client.Command{Argv: []string{"/bin/true"}}); err != nil {
				return err
			}
			execs = append(execs, time.Since(start))
		}
		row(fmt.Sprintf("execute `1+1` over HTTP, live kernel, %g CPU", cpus), cells)
		row(fmt.Sprintf("exec `/bin/true` over HTTP, %g CPU", cpus), execs)
		if err := sb.Kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (h *house) streams(ctx context.Context) error {
	sb, err := h.Create(ctx, client.Spec{Limits: arenero.Limits{CPUs: 2}})
	if err != nil {
		return err
	}
	defer func() { _ = sb.Kill(ctx) }() // the next Create says what is wrong
	for _, c := range []struct {
		what string
		argv []string
	}{
		{"written 1 MiB at a time", []string{"dd", "if=/dev/zero", "bs=1M", "count=512", "status=none"}},
		{"written 8 KiB at a time", []string{"dd", "if=/dev/zero", "bs=8k", "count=32k", "status=none"}},
	} {
		var rates []float64
		for range 5 {
			start := time.Now()
			n := &counter{}
			if _, err := sb.Copy(ctx, n, client.Command{Argv: c.argv, Timeout: time.Minute}); err != nil {
				return err
			}
			rates = append(rates, float64(n.n)/1e6/time.Since(start).Seconds())
		}
		sort.Float64s(rates)
		fmt.Printf("| output of a process to an HTTP client, %s | %.0f MB/s | | %d |\n", c.what, rates[2], len(rates))
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.pid))
	if err != nil {
		return err
	}
	if peak := regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(raw); peak != nil {
		kib, _ := strconv.Atoi(string(peak[1]))
		fmt.Printf("| the daemon's memory at its highest | %d MiB | | |\n", kib>>10)
	}
	return nil
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

// memory sums the proportional set size of every process of a box.
func (h *house) memory(ctx context.Context) error {
	for _, c := range []struct{ what, image string }{{"the agent alone", "minimal"}, {"with the restored Python kernel", "python"}} {
		sb, err := h.Create(ctx, client.Spec{Image: c.image})
		if err != nil {
			fmt.Printf("| idle sandbox, %s | left out: %v | | |\n", c.what, err)
			continue
		}
		time.Sleep(time.Second)
		total, procs := pss("box-" + sb.ID()[4:12] + "-*")
		fmt.Printf("| idle sandbox, PSS, %s | %d MiB in %d address spaces | | 1 |\n", c.what, total>>20, procs)
		if err := sb.Kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func pss(id string) (total int64, procs int) {
	groups, _ := filepath.Glob("/sys/fs/cgroup/memory/arenero/*/" + id + "/cgroup.procs")
	if len(groups) == 0 {
		groups, _ = filepath.Glob("/sys/fs/cgroup/arenero/*/" + id + "/cgroup.procs")
	}
	var seen []int
	for _, g := range groups {
		raw, _ := os.ReadFile(g)
		for pid := range strings.FieldsSeq(string(raw)) {
			// The threads of a guest are processes here that share their memory: it
			// counts once.
			n, err := strconv.Atoi(pid)
			if err != nil || shares(n, seen) {
				continue
			}
			seen = append(seen, n)
			roll, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup")
			for line := range strings.SplitSeq(string(roll), "\n") {
				if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
					n, _ := strconv.ParseInt(f[1], 10, 64)
					total += n << 10
					procs++
				}
			}
		}
	}
	return total, procs
}

// shares reports whether a process has the address space of one of the others
// (kcmp(2), KCMP_VM).
func shares(pid int, others []int) bool {
	for _, o := range others {
		if r, _, errno := syscall.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(o), 1, 0, 0, 0); errno == 0 && r == 0 {
			return true
		}
	}
	return false
}

func (h *house) overhead(ctx context.Context, p *peer) error {
	sb, err := h.Create(ctx, client.Spec{Limits: arenero.Limits{CPUs: 2}})
	if err != nil {
		return err
	}
	defer func() { _ = sb.Kill(ctx) }() // the next Create says what is wrong
	if err := sb.WriteFile(ctx, "/workspace/workload.py", 0o644, strings.NewReader(string(workload))); err != nil {
		return err
	}
	r, err := sb.Exec(ctx, client.Command{Argv: []string{"python3", "/workspace/workload.py", "/tmp"}, Timeout: 10 * time.Minute})
	if err != nil || r.ExitCode != 0 {
		return fmt.Errorf("workload: %w: %s", err, r.Stderr)
	}
	ours, theirs := map[string]float64{}, map[string]float64{}
	if err := json.Unmarshal([]byte(r.Stdout), &ours); err != nil {
		return err
	}
	if p != nil {
		out, err := p.run(ctx, workload, "/tmp")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(out, &theirs); err != nil {
			return err
		}
	}
	fmt.Println("\n| program | gVisor | runc, same image | factor |\n|---|---|---|---|")
	names := make([]string, 0, len(ours))
	for n := range ours {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Printf("| %s | %.0f ms | %.0f ms | %.1f |\n", n, ours[n]*1000, theirs[n]*1000, ours[n]/theirs[n])
	}
	return nil
}

// A peer is the same image in a plain runc container.
type peer struct{ dir string }

func mountPeer(ctx context.Context, bin, data string) (*peer, error) {
	if _, err := exec.LookPath("runc"); err != nil {
		return nil, errors.New("runc is not installed")
	}
	out, err := exec.CommandContext(ctx, bin, "image", "inspect", "python", "--data", data).Output()
	if err != nil {
		return nil, err
	}
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).Find(out)
	blob := filepath.Join(data, "images", "blobs", strings.Replace(string(digest), ":", "-", 1)+".erofs")
	dir, err := os.MkdirTemp("", "peer")
	if err != nil {
		return nil, err
	}
	p := &peer{dir}
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "mount", "-t", "erofs", "-o", "loop,ro", blob, filepath.Join(dir, "rootfs")).CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("mount the image: %w: %s", err, out)
	}
	return p, nil
}

func (p *peer) close() {
	_ = exec.CommandContext(context.Background(), "umount", filepath.Join(p.dir, "rootfs")).Run()
	os.RemoveAll(p.dir)
}

func (p *peer) run(ctx context.Context, program []byte, args ...string) ([]byte, error) {
	type mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": 1000, "gid": 1000}, "cwd": "/workspace",
			"args": append([]string{"python3", "-"}, args...),
			"env":  []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/user"},
		},
		"root": map[string]any{"path": "rootfs", "readonly": true},
		"mounts": []mount{
			{"/proc", "proc", "proc", nil}, {"/dev", "tmpfs", "tmpfs", nil}, {"/tmp", "tmpfs", "tmpfs", []string{"mode=1777"}},
			{"/workspace", "tmpfs", "tmpfs", []string{"mode=1777"}}, {"/home/user", "tmpfs", "tmpfs", []string{"mode=1777"}},
			{"/run", "tmpfs", "tmpfs", []string{"mode=1777"}}, {"/dev/shm", "tmpfs", "shm", []string{"mode=1777"}},
		},
		"linux": map[string]any{"namespaces": []map[string]string{
			{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
		}},
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "config.json"), raw, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "runc", "--root", filepath.Join(p.dir, "runc"), "run", "-b", p.dir, "arenero-bench")
	cmd.Stdin = strings.NewReader(string(program))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("runc: %w: %s", err, errs.String())
	}
	return out, nil
}

func (p *peer) kernel(ctx context.Context) ([]time.Duration, error) {
	out, err := p.run(ctx, kernel, "200")
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	for line := range strings.Lines(string(out)) {
		ms, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err == nil {
			times = append(times, time.Duration(ms*float64(time.Millisecond)))
		}
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("no times in %q", out)
	}
	return times, nil
}
