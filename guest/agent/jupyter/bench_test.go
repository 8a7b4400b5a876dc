package jupyter

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

// clientBench drives a kernel with Jupyter's own client, over the same transport.
const clientBench = `
import sys, time
from jupyter_client import KernelManager
km = KernelManager(kernel_name="python3", transport="ipc")
km._launch_args = {}
km.kernel_spec.argv[0] = sys.executable
km.start_kernel()
kc = km.client(); kc.start_channels(); kc.wait_for_ready(timeout=60)
def once():
    t = time.perf_counter()
    mid = kc.execute("1+1")
    while True:
        m = kc.get_iopub_msg(timeout=10)
        if m["parent_header"].get("msg_id") == mid and m["msg_type"] == "status" and m["content"]["execution_state"] == "idle":
            break
    while kc.get_shell_msg(timeout=10)["parent_header"].get("msg_id") != mid: pass
    return time.perf_counter() - t
for _ in range(20): once()
for _ in range(int(sys.argv[1])): print(int(once() * 1e9))
kc.stop_channels(); km.shutdown_kernel(now=True)
`

// BenchmarkExecute is the round trip of 1+1 in a live kernel, ours beside that of
// jupyter_client in the same run.
func BenchmarkExecute(b *testing.B) {
	m := manager(b)
	one := func() time.Duration {
		t := time.Now()
		err := m.Execute(b.Context(), arenero.Execute{Kernel: "python", Code: "1+1"}, nil, func(Event) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		return time.Since(t)
	}
	for range 20 {
		one()
	}
	var ours []time.Duration
	for b.Loop() {
		ours = append(ours, one())
	}
	b.ReportMetric(0, "ns/op")
	report(b, "ours", ours)
	if len(ours) < 20 {
		return
	}
	report(b, "jupyter_client", client(b, min(len(ours), 300)))
}

func client(b *testing.B, n int) []time.Duration {
	py, err := python()
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "bench.py")
	if err := os.WriteFile(file, []byte(clientBench), 0o644); err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command(py, file, strconv.Itoa(n)).Output()
	if err != nil {
		b.Fatalf("jupyter_client: %v", err)
	}
	var times []time.Duration
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		ns, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Duration(ns))
	}
	return times
}

func report(b *testing.B, who string, times []time.Duration) {
	slices.Sort(times)
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	b.ReportMetric(ms(times[len(times)/2]), "ms-median-"+who)
	b.ReportMetric(ms(times[len(times)*99/100]), fmt.Sprintf("ms-p99-%s", who))
}
