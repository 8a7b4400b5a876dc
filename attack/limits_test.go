package attack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

// Each attack trips one limit. Afterwards the sandbox itself (where it can be
// kept), a neighbour and the host go on.
func TestLimits(t *testing.T) {
	neighbour := sandbox(t, arenero.Limits{})
	small := arenero.Limits{Memory: 256 * arenero.MiB, Disk: 64 * arenero.MiB, Processes: 64, OpenFiles: 128}
	for _, a := range []struct {
		name   string
		code   string
		reason arenero.ExitReason // "" does not matter
		say    string             // in stderr
	}{
		{"memory", "x=[]\nwhile True: x.append(bytearray(8<<20))", arenero.OutOfMemory, ""},
		{"fork bomb", "import os\nwhile True: os.fork()", "", ""},
		{"forks", "import os,time\nwhile True:\n  if os.fork()==0: time.sleep(60); os._exit(0)", arenero.ProcessLimit, "Resource temporarily unavailable"},
		{"threads", "import threading,time\nwhile True: threading.Thread(target=time.sleep,args=(60,),daemon=True).start()", arenero.ProcessLimit, "can't start new thread"},
		{"disk", "f=open('/workspace/x','wb')\nwhile True: f.write(bytes(1<<20))", arenero.DiskFull, "No space left"},
		{"disk in other places", "import itertools\nfor p in itertools.cycle(['/tmp','/home/user','/var/tmp','/dev/shm','/workspace']):\n  open(p+'/y','ab').write(bytes(1<<20))", arenero.DiskFull, "No space left"},
		{"inodes", "for i in range(10**7): open('/tmp/%d'%i,'w').close()", arenero.DiskFull, "No space left"},
		{"open files", "x=[]\nwhile True: x.append(open('/dev/null'))", "", "Too many open files"},
		{"sparse file", "import os\nf=os.open('/tmp/s',os.O_CREAT|os.O_RDWR)\nos.ftruncate(f,1<<40)\nos.posix_fallocate(f,0,1<<40)", "", "No space left"},
	} {
		t.Run(a.name, func(t *testing.T) {
			sb := sandbox(t, small)
			r := python(t, sb, a.code, 20*time.Second)
			if a.reason != "" && r.ExitReason != a.reason || !strings.Contains(r.Stderr, a.say) || r.ExitReason == arenero.Exited && r.ExitCode == 0 {
				t.Errorf("%s, status %d, stderr %.300q; want %s, %q", r.ExitReason, r.ExitCode, r.Stderr, a.reason, a.say)
			}
			python(t, sb, "import os\nfor p in ['/tmp','/home/user','/var/tmp','/dev/shm','/workspace']:\n  for f in os.listdir(p):\n    if os.path.isfile(p+'/'+f): os.remove(p+'/'+f)", 60*time.Second)
			lives(t, "the sandbox", sb)
			lives(t, "the neighbour", neighbour)
		})
	}
}

// Many processes that eat memory together can be faster than the agent's guard.
// Then the host's limit ends the sandbox, which says why, and nobody else is hurt.
func TestMemoryOfMany(t *testing.T) {
	neighbour := sandbox(t, arenero.Limits{})
	sb := sandbox(t, arenero.Limits{Memory: 128 * arenero.MiB, Disk: 16 * arenero.MiB})
	code := "import os\nfor i in range(12):\n  if os.fork()==0:\n    x=[]\n    while True: x.append(bytearray(16<<20))\nos.wait()"
	r, err := sb.Exec(t.Context(), client.Command{Argv: []string{"python3", "-c", code}, Timeout: 20 * time.Second})
	if err != nil {
		if arenero.CodeOf(err) != arenero.Conflict || !strings.Contains(err.Error(), "memory") {
			t.Errorf("the end of the sandbox is not explained: %v", err)
		}
	} else if r.ExitReason == arenero.TimedOut {
		t.Errorf("it could eat for 20 s: %+v", r)
	}
	lives(t, "the neighbour", neighbour)
}

// The same in a kernel: the cell is told why, and where the interpreter had to
// die a new one answers.
func TestLimitsInKernel(t *testing.T) {
	sb := sandbox(t, arenero.Limits{Memory: 384 * arenero.MiB, Disk: 64 * arenero.MiB, Processes: 64})
	if r := cell(t, sb, "x=[]\nwhile True: x.append(bytearray(8<<20))", 30*time.Second); r.ExitReason != arenero.OutOfMemory {
		t.Errorf("memory: %s %+v", r.ExitReason, r.Error)
	}
	lives(t, "the sandbox", sb)
	if r := cell(t, sb, "f=open('/workspace/x','wb')\nwhile True: f.write(bytes(1<<20))", 30*time.Second); r.ExitReason != arenero.DiskFull {
		t.Errorf("disk: %s %+v", r.ExitReason, r.Error)
	}
	if r := cell(t, sb, "import os; os._exit(3)", 30*time.Second); r.ExitReason != arenero.KernelDied {
		t.Errorf("exit: %s %+v", r.ExitReason, r.Error)
	}
}

func TestCPUQuota(t *testing.T) {
	sb := sandbox(t, arenero.Limits{CPUs: 0.5})
	used := func() int64 {
		for _, f := range []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct"} {
			files, _ := filepath.Glob(filepath.Join(f, "arenero/*", "box-"+sb.ID()[4:12]+"-*", "cpuacct.usage"))
			if len(files) == 1 {
				raw, err := os.ReadFile(files[0])
				if err != nil {
					t.Fatal(err)
				}
				n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
				return n
			}
		}
		files, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/arenero/*", "box-"+sb.ID()[4:12]+"-*", "cpu.stat"))
		if len(files) != 1 {
			t.Fatal("no accounts of", sb.ID())
		}
		raw, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(raw), "usage_usec ")
		n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		return n * 1000
	}
	before, start := used(), time.Now()
	r := python(t, sb, "import os\nfor i in range(4):\n  if os.fork()==0:\n    while True: 1+1\nos.wait()", 4*time.Second)
	spent, wall := time.Duration(used()-before), time.Since(start)
	if r.ExitReason != arenero.TimedOut {
		t.Errorf("%s", r.ExitReason)
	}
	// A period of the quota may be saved up, and one runs over.
	if most := wall*55/100 + 300*time.Millisecond; spent > most {
		t.Errorf("it used %v of CPU in %v, at most %v are allowed", spent, wall, most)
	}
}

// 100 MB of output: the end of it is kept, the rest counted, the daemon stays small.
func TestOutputFlood(t *testing.T) {
	sb := sandbox(t, arenero.Limits{Output: 1 * arenero.MiB})
	python(t, sb, "print('x'*(1<<20))", time.Minute) // the daemon has its buffers
	before := kib(t, status(t, house.pid, "VmRSS"))
	for name, run := range map[string]func(*testing.T, *client.Sandbox, string, time.Duration) arenero.Result{"process": python, "kernel": cell} {
		r := run(t, sb, "for i in range(100): print(chr(97+i%26)*(1<<20))\nprint('the end')", time.Minute)
		if !strings.HasSuffix(r.Stdout, "the end\n") || int64(len(r.Stdout)) > 1*arenero.MiB || r.Truncated.Stdout < 98<<20 || r.ExitReason != arenero.Exited {
			t.Errorf("%s: %d bytes kept, %d dropped, %s", name, len(r.Stdout), r.Truncated.Stdout, r.ExitReason)
		}
	}
	if grown := kib(t, status(t, house.pid, "VmRSS")) - before; grown > 48*arenero.MiB {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
}

// Time is up for the whole tree, whatever it does to stay.
func TestDeadlines(t *testing.T) {
	sb := sandbox(t, arenero.Limits{})
	alive := func() string {
		return python(t, sb, "import os\nn=0\nfor p in os.listdir('/proc'):\n  if p.isdigit():\n    try: n += b'STAYS' in open('/proc/'+p+'/cmdline','rb').read() and int(p)!=os.getpid()\n    except OSError: pass\nprint(n)", time.Minute).Stdout
	}
	for name, code := range map[string]string{
		"sleeps":          "import time; print('before',flush=True); time.sleep(600) #STAY",
		"ignores SIGTERM": "import signal,time; signal.signal(15,signal.SIG_IGN); print('before',flush=True)\nwhile True: time.sleep(1) #STAY",
		"daemonises":      "import os,time; print('before',flush=True)\nif os.fork()==0:\n  os.setsid()\n  if os.fork()==0:\n    os.execvp('sleep',['STAYS','600'])\n  os._exit(0)\ntime.sleep(600)",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r := python(t, sb, code, 2*time.Second)
			if r.ExitReason != arenero.TimedOut || r.Stdout != "before\n" {
				t.Errorf("%s, stdout %q", r.ExitReason, r.Stdout)
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("answered after %v", took)
			}
			if n := alive(); n != "0\n" {
				t.Errorf("%s processes are left", strings.TrimSpace(n))
			}
		})
	}
	start := time.Now()
	r, err := house.Execute(t.Context(), client.Run{Code: "import time\nprint('partial')\ntime.sleep(600)", Timeout: 2 * time.Second})
	if err != nil || r.ExitReason != arenero.TimedOut || r.Output != "partial\n" {
		t.Errorf("execute: %+v, %v", r, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("execute answered after %v", took)
	}
}
