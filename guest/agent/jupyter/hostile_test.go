package jupyter

import (
	"strings"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

// impostor is a kernel that opens the sockets and then does what it likes; it is
// given its connections as c.
func impostor(t *testing.T, does string) *Manager {
	t.Helper()
	py, err := python()
	if err != nil {
		t.Fatal(err)
	}
	m := bareManager(t, map[string]spec{"bad": {Language: "bad", Argv: []string{py, "-c", `
import json, os, socket, struct, sys, threading, time
ip = json.load(open(sys.argv[1]))["ip"]
READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
READY = READY[:1] + bytes([len(READY) - 2]) + READY[2:]
HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
def serve(n):
    s = socket.socket(socket.AF_UNIX); s.bind("%s-%d" % (ip, n)); s.listen()
    while True:
        c = s.accept()[0]
        try:
` + "            " + does + `
        except OSError: pass
for n in range(1, 6): threading.Thread(target=serve, args=(n,), daemon=True).start()
time.sleep(60)`, "{connection_file}"}}})
	m.cfg.StartTimeout = 2 * time.Second
	return m
}

func TestImpostors(t *testing.T) {
	for name, does := range map[string]string{
		"garbage":           `c.sendall(os.urandom(1000))`,
		"garbage after":     `c.sendall(HELLO + os.urandom(10000))`,
		"closes":            `c.close()`,
		"silent":            `time.sleep(60)`,
		"greets only":       `c.sendall(HELLO); time.sleep(60)`,
		"never answers":     `c.sendall(HELLO + READY); time.sleep(60)`,
		"huge frame":        `c.sendall(HELLO + READY + b"\x02" + struct.pack(">Q", 1 << 62)); time.sleep(60)`,
		"huge command":      `c.sendall(HELLO + b"\x06" + struct.pack(">Q", 1 << 40)); time.sleep(60)`,
		"endless commands":  `c.sendall(HELLO + b"\x04\x05\x04PING" * 100); time.sleep(60)`,
		"endless frames":    `c.sendall(HELLO + READY + b"\x01\x00" * 1000); time.sleep(60)`,
		"no delimiter":      `c.sendall(HELLO + READY + b"\x00\x04junk"); time.sleep(60)`,
		"bad signature":     `c.sendall(HELLO + READY + b"\x01\x09<IDS|MSG>\x01\x01x" + b"\x01\x02{}" * 3 + b"\x00\x02{}"); time.sleep(60)`,
		"another mechanism": `c.sendall(HELLO.replace(b"NULL", b"CURV") + READY); time.sleep(60)`,
		"old version":       `c.sendall(b"\xff" + bytes(8) + b"\x7f\x01" + bytes(53)); time.sleep(60)`,
	} {
		t.Run(name, func(t *testing.T) {
			m := impostor(t, does)
			begin := time.Now()
			_, err := m.Start(t.Context(), arenero.KernelRequest{Name: "k", Language: "bad"})
			if err == nil {
				t.Fatal("it was believed")
			}
			if c := arenero.CodeOf(err); c == arenero.Internal || c == "" {
				t.Errorf("code %s: %v", c, err)
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			if len(m.List()) != 0 {
				t.Error("a kernel is left")
			}
		})
	}
}

func TestKernelThatDoesNotStart(t *testing.T) {
	py, err := python()
	if err != nil {
		t.Fatal(err)
	}
	m := bareManager(t, map[string]spec{
		"missing": {Argv: []string{py, "-m", "no_such_module_at_all"}, Language: "missing"},
		"nofile":  {Argv: []string{"/no/such/program"}, Language: "nofile"},
	})
	_, err = m.Start(t.Context(), arenero.KernelRequest{Name: "k", Language: "missing"})
	if arenero.CodeOf(err) != arenero.Unavailable || !strings.Contains(arenero.HintOf(err), "no_such_module_at_all") {
		t.Errorf("%v (%s)", err, arenero.HintOf(err))
	}
	if _, err = m.Start(t.Context(), arenero.KernelRequest{Name: "k", Language: "nofile"}); arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestForgedMessages(t *testing.T) {
	m := manager(t)
	code(t, m, `
from IPython import get_ipython
import time
K = get_ipython().kernel
def forge(reply):
    parent = K.get_parent("shell")
    K.session.send(K.iopub_socket, "status", {"execution_state": "idle"}, parent=parent)
    if reply:
        K.session.send(K.iopub_socket, "execute_reply", {"status": "ok", "execution_count": 99}, parent=parent)`)
	// An idle alone does not end the cell.
	o := code(t, m, "forge(False)\ntime.sleep(1)\nprint('mine')")
	if o.stdout != "mine\n" || o.end.Reason != arenero.Exited {
		t.Errorf("a forged idle: %+v", o)
	}
	// A whole forged end does, and the cell's later words are nobody's.
	do(t, m, arenero.Execute{Code: "forge(True)\ntime.sleep(0.5)\nprint('stray')"})
	if o = code(t, m, "print('next')"); o.stdout != "next\n" {
		t.Errorf("mixed: %+v", o)
	}
	// What belongs to no request of ours is passed over.
	o = code(t, m, `
K.session.send(K.iopub_socket, "stream", {"name": "stdout", "text": "foreign"}, parent={"header": {"msg_id": "x", "session": "y"}})
K.session.send(K.iopub_socket, "stream", {"name": "stdout", "text": 5}, parent=K.get_parent("shell"))
K.session.send(K.iopub_socket, "display_data", {"data": {"text/plain": {"a": 1}, "text/html": ["x", "y"], "n": 5}}, parent=K.get_parent("shell"))
K.session.send(K.iopub_socket, "display_data", {"data": 5}, parent=K.get_parent("shell"))
K.session.send(K.iopub_socket, "error", {"traceback": 5}, parent=K.get_parent("shell"))
K.session.send(K.iopub_socket, "unheard_of", {}, parent=K.get_parent("shell"))
print("own")`)
	if o.stdout != "own\n" || len(o.displays) != 1 || o.displays[0].MIME["text/html"] != "xy" || o.err != nil {
		t.Errorf("odd messages: %+v", o)
	}
}

func TestGarbageOfALiveKernel(t *testing.T) {
	for name, c := range map[string]string{
		"no delimiter":  `K.iopub_thread.socket.send_multipart([b"junk"])`,
		"bad signature": `K.iopub_thread.socket.send_multipart([b"<IDS|MSG>", b"0" * 64, b"{}", b"{}", b"{}", b"{}"])`,
		"many frames":   `K.iopub_thread.socket.send_multipart([b"x"] * 1000)`,
		"closed":        `K.shell_stream.socket.close() if hasattr(K, "shell_stream") else K.shell_socket.close()`,
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t)
			o := code(t, m, "import time\nK = get_ipython().kernel\n"+c+"\ntime.sleep(20)")
			if o.end.Reason != arenero.KernelDied || !strings.Contains(o.stderr, "broke the protocol") || o.end.Duration > 15*time.Second {
				t.Errorf("got %+v", o)
			}
		})
	}
}

func TestMessageTooLarge(t *testing.T) {
	m := manager(t)
	o := code(t, m, `
display({"text/plain": "x" * (65 << 20)}, raw=True)
print("after")
"y" * (1 << 20)`)
	if !strings.Contains(o.stderr, "refused") || o.stdout != "after\n" || len(o.displays) != 1 || len(o.main()) < 1<<20 || o.end.Reason != arenero.Exited {
		t.Errorf("stderr %.200q, stdout %.200q, %d displays, %+v", o.stderr, o.stdout, len(o.displays), o.end)
	}
}

func TestManyDisplays(t *testing.T) {
	m := manager(t)
	o := code(t, m, `
from IPython.display import display
for i in range(10_050): display({"text/plain": "x"}, raw=True)
print("end")`)
	if len(o.displays) != MaxDisplays || o.stdout != "end\n" || strings.Count(o.stderr, "dropped") != 1 {
		t.Errorf("%d displays, %q, %q", len(o.displays), o.stdout, o.stderr)
	}
}

// TestSlowReader holds all back until the reader takes it: nothing is lost, the
// message that ends the cell least of all.
func TestSlowReader(t *testing.T) {
	m := manager(t)
	var bytes, pieces, displays int
	var end *arenero.KernelEnd
	err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Timeout: time.Minute, Code: `
for i in range(40):
    print("x" * (1 << 20))
from IPython.display import display
for i in range(5000): display({"text/plain": "y" * 2000}, raw=True)`},
		nil, func(e Event) error {
			if pieces == 0 {
				time.Sleep(2 * time.Second)
			}
			pieces++
			bytes += len(e.Stdout)
			if len(e.Stdout) > MaxPiece {
				t.Errorf("a piece of %d bytes", len(e.Stdout))
			}
			if e.Display != nil {
				displays++
			}
			end = e.End
			return nil
		})
	if err != nil || bytes != 40*(1<<20+1) || displays != 5000 || end == nil || end.Reason != arenero.Exited {
		t.Errorf("%v: %d bytes, %d displays, %+v", err, bytes, displays, end)
	}
}

// TestFloodIsStopped prints without end to a reader that is slower.
func TestFloodIsStopped(t *testing.T) {
	m := manager(t)
	var total int
	var end *arenero.KernelEnd
	err := m.Execute(t.Context(), arenero.Execute{Kernel: "python", Code: "while True: print('y' * 10000)", Timeout: 2 * time.Second}, nil,
		func(e Event) error {
			time.Sleep(5 * time.Millisecond)
			total += len(e.Stdout)
			end = e.End
			return nil
		})
	if err != nil || end == nil || end.Reason != arenero.TimedOut || total == 0 {
		t.Errorf("%v %+v", err, end)
	}
	if s := m.List()[0].State; s != "idle" && s != "dead" {
		t.Errorf("state %s", s)
	}
}
