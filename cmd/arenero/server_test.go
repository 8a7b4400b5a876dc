package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/arenero/arenero"
)

// daemon starts a server of its own, with the images of all tests, and returns its
// address and its data folder. Nothing of it is left after the test.
func daemon(t *testing.T) (url, data string) {
	t.Helper()
	needImage(t, "python")
	data, err := os.MkdirTemp("", "srv") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(testData(), "images"), filepath.Join(data, "images")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("arenero", "serve", "--data", data, "--listen", "127.0.0.1:0", "--on-stop", "kill", "--pool-max", "0", "--no-warm")
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // if it is gone, Wait says so
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the server ended with %v:\n%s", err, &log)
		}
		if left, err := os.ReadDir(filepath.Join(data, "boxes")); err == nil && len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if err := os.RemoveAll(data); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url = regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		t.Fatalf("the server did not say where it listens: %q, %v\n%s", line, err, &log)
	}
	return url, data
}

// TestServerScripts runs testdata/server/*.txtar, beside one another, against a
// real server with real sandboxes. They are the documentation of those verbs by
// example: docs/cli.md.
func TestServerScripts(t *testing.T) {
	url, data := daemon(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/server",
		Setup: func(e *testscript.Env) error {
			e.Setenv("ARENERO_DATA", data)
			e.Setenv("ARENERO_URL", url)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"let":  let,
			"soon": soon,
		},
	})
}

// let NAME: the last standard output, without its end of line, becomes a variable.
func let(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: let NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// soon PATTERN COMMAND...: the command is run until its output matches.
func soon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: soon PATTERN COMMAND...")
	}
	want := regexp.MustCompile(args[0])
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("never came: %v", err)
		}
	}
}

// typist is a program in a terminal.
type typist struct {
	tty  *os.File
	cmd  *exec.Cmd
	seen chan string // all that was printed, again at each piece
}

func inTerminal(t *testing.T, env []string, args ...string) *typist {
	t.Helper()
	cmd := exec.Command("arenero", args...)
	cmd.Env = append(os.Environ(), env...)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 100, Rows: 20})
	if err != nil {
		t.Fatal(err)
	}
	p := &typist{tty, cmd, make(chan string, 1)}
	go func() { // ends with the terminal
		defer close(p.seen)
		var all []byte
		b := make([]byte, 4096)
		for {
			n, err := tty.Read(b)
			all = append(all, b[:n]...)
			select {
			case <-p.seen:
			default:
			}
			p.seen <- string(all)
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it is still there
		tty.Close()
	})
	return p
}

// until waits for a text and returns all that was printed.
func (p *typist) until(t *testing.T, want string) string {
	t.Helper()
	last := ""
	for limit := time.After(30 * time.Second); ; {
		select {
		case s, ok := <-p.seen:
			if last = s; strings.Contains(s, want) {
				return s
			}
			if !ok {
				t.Fatalf("it ended without %q: %q", want, last)
			}
		case <-limit:
			t.Fatalf("%q never came: %q", want, last)
		}
	}
}

func (p *typist) send(t *testing.T, s string) {
	t.Helper()
	if _, err := io.WriteString(p.tty, s); err != nil {
		t.Fatal(err)
	}
}

// TestTerminals opens a shell, and the table of what sandboxes use, as a person
// does.
func TestTerminals(t *testing.T) {
	url, data := daemon(t)
	env := []string{"ARENERO_URL=" + url, "ARENERO_DATA=" + data, "TERM=xterm"}
	create := exec.Command("arenero", "create")
	create.Env = append(os.Environ(), env...)
	out, err := create.Output()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))

	t.Run("shell", func(t *testing.T) {
		p := inTerminal(t, env, "shell", id)
		p.until(t, "$")
		p.send(t, "stty size\n")
		p.until(t, "20 100")
		if err := pty.Setsize(p.tty, &pty.Winsize{Cols: 77, Rows: 11}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // the signal and the message are on their way
		p.send(t, "stty size\n")
		p.until(t, "11 77")
		p.send(t, "sleep 1000\n")
		time.Sleep(500 * time.Millisecond)
		p.send(t, "\x03") // goes in, and does not end the shell
		p.send(t, "exit 7\n")
		if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("top", func(t *testing.T) {
		p := inTerminal(t, env, "top", "--interval", "0.2")
		p.until(t, id)
		p.send(t, "q")
		got := p.until(t, leaveScreen)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
		if !strings.HasPrefix(got, enterScreen) {
			t.Errorf("it printed %q", got)
		}
	})
	t.Run("top, killed", func(t *testing.T) {
		p := inTerminal(t, env, "top", "--interval", "0.2")
		p.until(t, id)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.until(t, leaveScreen)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("cp", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, make([]byte, 8<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		p := inTerminal(t, env, "cp", file, id+":file")
		p.until(t, "8.0 MiB / 8.0 MiB")
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestFrame(t *testing.T) {
	all := []load{
		{ID: "sbx-a", State: arenero.Running, Image: "evil\x1b[2Jname", CPU: 12.34, Memory: 3 * arenero.MiB, Limit: arenero.GiB, Created: time.Now()},
		{ID: "sbx-b", State: arenero.Paused}, {ID: "sbx-c", State: arenero.Running},
	}
	got := frame(all, "", 200, 50)
	for _, want := range []string{"3 sandboxes, 12.3 % CPU, 3 MiB", "sbx-a", "12.3", `evil\x1b[2Jname`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	lines := strings.Split(frame(all, "", 20, 4), "\n")
	if len(lines) != 4 {
		t.Errorf("%d lines on a screen of 4", len(lines))
	}
	for _, l := range lines {
		if len([]rune(l)) > 20 {
			t.Errorf("%q is wider than the screen", l)
		}
	}
}

// TestKeyStaysHere checks that the key of this machine's daemon goes to no other.
func TestKeyStaysHere(t *testing.T) {
	data := t.TempDir()
	key := "arn_abcdefghijkl_" + strings.Repeat("a", 52)
	if err := os.WriteFile(keyFile(data), []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ARENERO_API_KEY", "")
	for url, want := range map[string]string{
		"http://127.0.0.1:8000": key, "http://localhost:1": key, "http://[::1]:8000": key,
		"http://10.0.0.1:8000": "", "https://arenero.example": "", "http://127.0.0.1.evil.example": "", "://": "",
	} {
		r := remote{URL: url}
		if got := r.client(&cli{Data: data}).Key; got != want {
			t.Errorf("%s got %q", url, got)
		}
	}
}

// TestEveryVerbIsDocumented holds docs/cli.md to the verbs there are.
func TestEveryVerbIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	p, err := kong.New(&cli{}, kong.Name("arenero"), kong.Vars{"data": "x"},
		kong.NamedMapper("size", sizeMapper{}), kong.NamedMapper("seconds", secondsMapper{}), kong.NamedMapper("never", neverMapper{}))
	if err != nil {
		t.Fatal(err)
	}
	leaves := p.Model.Leaves(true)
	if len(leaves) < 30 {
		t.Fatalf("only %d verbs", len(leaves))
	}
	for _, leaf := range leaves {
		if verb := leaf.Path(); !bytes.Contains(doc, []byte(verb)) {
			t.Errorf("docs/cli.md has no %q", verb)
		}
	}
}
