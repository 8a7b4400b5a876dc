package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// runCmd is `arenero run`. After holds what followed "--"; nil without one.
type runCmd struct {
	File string `arg:"" optional:"" help:"Program to run in a kernel; - reads it from standard input."`

	Image   string        `help:"Image to run in (${default})." default:"python" placeholder:"NAME"`
	Kernel  string        `help:"Language of the program; without it, by the file's name." placeholder:"LANGUAGE"`
	Timeout time.Duration `help:"How long it may run: 90s, 5m, or seconds." type:"seconds" placeholder:"TIME"`
	Memory  int64         `help:"Memory for everything inside: 512M, 2G." type:"size" placeholder:"SIZE"`
	CPUs    float64       `help:"Cores, as a share of time: 0.5." name:"cpus" placeholder:"N"`
	PIDs    int           `help:"Processes and threads inside." name:"pids" placeholder:"N"`
	Disk    int64         `help:"Bytes that may be written inside: 100M." type:"size" placeholder:"SIZE"`
	Env     []string      `help:"Environment inside; K alone hands on ours." short:"e" sep:"none" placeholder:"K=V"`
	Files   []string      `help:"File or folder to put in; without GUEST, into the work directory." name:"file" short:"f" sep:"none" placeholder:"HOST[:GUEST]"`
	Out     string        `help:"Folder for the files and pictures it makes." short:"o" placeholder:"DIR"`
	Stdin   bool          `help:"Give the program our standard input."`
	JSON    bool          `help:"Print the result as JSON, at the end." name:"json"`
	Verbose bool          `help:"Say how the sandbox was made." short:"v"`
	Raw     bool          `help:"Pass control sequences to the terminal as they are."`

	After []string `kong:"-"`
}

// Help is shown below the flags.
func (*runCmd) Help() string {
	return `Examples:
  arenero run analysis.py --file sales.csv --out results
  arenero run script.py -- --verbose input.txt
  arenero run -- python3 -c 'print(6*7)'
  echo 'print(6*7)' | arenero run -

The exit status is the program's own; 1 after an uncaught exception, 124 after a timeout, 137 out of memory, 130 after Ctrl-C, and
125 when arenero itself could not do it. Ctrl-C interrupts the program; twice ends it.

Files for --out are taken out when the program has ended, also by a timeout or an exception. When the whole sandbox ends under it,
for want of memory or by a second Ctrl-C, they are gone, and arenero says so.`
}

// maxCode bounds a program, maxStdin what a script reads from standard input: both
// travel to the kernel in one message.
const (
	maxCode  = 8 * arenero.MiB
	maxStdin = 8 * arenero.MiB
)

// A job is a run that was understood: all that can be wrong with the command line
// has been found before a sandbox is made.
type job struct {
	cmd      *runCmd
	command  []string // run a command; nil runs code
	code     string
	script   *arenero.Script
	language string
	stdin    io.Reader // streamed to a command; nil is empty
	files    []fileIn
	spec     arenero.Spec
}

// Run runs a program in a sandbox of its own and ends with its status.
func (c *runCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	j, err := c.plan(m)
	if err != nil {
		return err
	}
	var out *outDir
	if c.Out != "" {
		if out, err = openOut(c.Out); err != nil {
			return err
		}
		defer out.close()
	}
	r := &running{job: j, m: m, out: out, screen: newScreen(m, c.Raw, out), interrupts: make(chan struct{}, 1)}
	r.screen.quiet = c.JSON
	ctx, stop := r.signals(ctx)
	defer stop()

	res, err := r.inHouse(ctx, cli.Data)
	if ferr := r.screen.close(); err == nil && ferr != nil {
		err = arenero.Errorf(arenero.Internal, "write output", "", "%w", ferr)
	}
	if r.out != nil && r.started.Load() && !r.collected {
		fmt.Fprintln(r.m.Stderr, "arenero: files that the program made are lost: its sandbox ended before they could be taken out (--out)")
	}
	if err != nil && r.interrupted.Load() {
		err = status(statusCanceled)
	}
	if err != nil {
		return err
	}
	return r.finish(res)
}

// finish tells how the run ended, and turns that into an exit status.
func (r *running) finish(res arenero.Result) error {
	if r.interrupted.Load() && res.ExitReason != arenero.Exited {
		res.ExitReason = arenero.Cancelled
	}
	code := statusOf(res)
	res.ExitCode = code
	if r.cmd.JSON {
		enc := json.NewEncoder(r.m.Stdout)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(res); err != nil {
			return arenero.Errorf(arenero.Internal, "write result", "", "%w", err)
		}
	} else if why := explain(res, r.spec.Limits.WithDefaults()); why != "" {
		fmt.Fprintf(r.m.Stderr, "arenero: %s\n", why)
	}
	if code != 0 {
		return status(code)
	}
	return nil
}

// statusOf is the exit status of a result.
func statusOf(res arenero.Result) int {
	switch res.ExitReason {
	case arenero.TimedOut:
		return statusTimeout
	case arenero.OutOfMemory:
		return statusMemory
	case arenero.Cancelled:
		return statusCanceled
	case arenero.Exited:
		return res.ExitCode & 0xff
	}
	if n, ok := signalNumber(res.Signal); ok && res.ExitCode == 0 {
		return 128 + n
	}
	if res.ExitCode&0xff != 0 {
		return res.ExitCode & 0xff
	}
	return 1
}

func signalNumber(name string) (int, bool) {
	n, ok := map[string]syscall.Signal{
		"SIGHUP": syscall.SIGHUP, "SIGINT": syscall.SIGINT, "SIGQUIT": syscall.SIGQUIT, "SIGILL": syscall.SIGILL,
		"SIGABRT": syscall.SIGABRT, "SIGFPE": syscall.SIGFPE, "SIGKILL": syscall.SIGKILL, "SIGSEGV": syscall.SIGSEGV,
		"SIGPIPE": syscall.SIGPIPE, "SIGALRM": syscall.SIGALRM, "SIGTERM": syscall.SIGTERM, "SIGBUS": syscall.SIGBUS,
	}[name]
	return int(n), ok
}

// explain is a sentence for an end that the program's own output does not explain.
func explain(res arenero.Result, l arenero.Limits) string {
	switch res.ExitReason {
	case arenero.TimedOut:
		return fmt.Sprintf("stopped after %s (--timeout)", l.Timeout)
	case arenero.OutOfMemory:
		return fmt.Sprintf("out of memory: the sandbox has %d MiB (--memory)", l.Memory/arenero.MiB)
	case arenero.DiskFull:
		return fmt.Sprintf("the disk is full: the sandbox has %d MiB (--disk)", l.Disk/arenero.MiB)
	case arenero.ProcessLimit:
		return fmt.Sprintf("too many processes: the sandbox may have %d (--pids)", l.Processes)
	case arenero.OutputLimit:
		return "stopped because it printed more than is allowed"
	case arenero.Cancelled:
		return "interrupted"
	case arenero.KernelDied:
		return "the interpreter ended under the program"
	case arenero.WasKilled:
		return "killed by " + printable(res.Signal)
	}
	return ""
}

// plan reads the command line and everything it names.
func (c *runCmd) plan(m *Main) (*job, error) {
	const op = "run"
	j := &job{cmd: c, spec: arenero.Spec{
		Image:  c.Image,
		Limits: arenero.Limits{CPUs: c.CPUs, Memory: c.Memory, Processes: c.PIDs, Disk: c.Disk, Timeout: c.Timeout},
	}}
	if err := j.spec.Limits.WithDefaults().Validate(); err != nil {
		return nil, err
	}
	var err error
	if j.spec.Env, err = parseEnv(c.Env); err != nil {
		return nil, err
	}
	for _, s := range c.Files {
		f, err := parseFile(s)
		if err != nil {
			return nil, err
		}
		j.files = append(j.files, f)
	}
	switch {
	case c.File == "" && len(c.After) == 0:
		return nil, arenero.Errorf(arenero.Invalid, op, "", "nothing to run").
			WithHint("arenero run FILE, or arenero run -- COMMAND")
	case c.File == "":
		return j, j.planCommand(m)
	}
	return j, j.planScript(m)
}

func (j *job) planCommand(m *Main) error {
	if j.cmd.Kernel != "" {
		return arenero.Errorf(arenero.Invalid, "run", "", "--kernel is for a file, not for a command")
	}
	for _, a := range j.cmd.After {
		if strings.ContainsRune(a, 0) {
			return arenero.Errorf(arenero.Invalid, "run", "", "an argument has a NUL byte")
		}
	}
	j.command = j.cmd.After
	if j.cmd.Stdin {
		j.stdin = m.Stdin
	}
	return nil
}

func (j *job) planScript(m *Main) error {
	name, src := j.cmd.File, io.Reader(m.Stdin)
	if name == "-" {
		name = "stdin"
		if j.cmd.Stdin {
			return arenero.Errorf(arenero.Invalid, "run", "", "standard input cannot be both the program and its input").
				WithHint("save the program to a file")
		}
	} else {
		f, err := os.Open(name)
		if err != nil {
			return arenero.Errorf(arenero.Invalid, "read program", "", "%w", err)
		}
		defer f.Close()
		src = f
	}
	code, err := readAll(src, maxCode, "program")
	if err != nil {
		return err
	}
	if !utf8.Valid(code) || slices.Contains(code, 0) {
		return arenero.Errorf(arenero.Invalid, "read program", printable(name), "it is not text: it has NUL bytes or is not UTF-8").
			WithHint("to run a binary: arenero run --file %s -- ./%s", printable(name), printable(filepath.Base(name)))
	}
	j.code, j.language = string(code), j.cmd.Kernel
	if j.language == "" {
		if j.language, err = languageOf(name); err != nil {
			return err
		}
	}
	j.script = &arenero.Script{File: filepath.Base(name), Args: j.cmd.After}
	if j.cmd.Stdin {
		if j.script.Stdin, err = readAll(m.Stdin, maxStdin, "standard input"); err != nil {
			return err
		}
	}
	return nil
}

func readAll(r io.Reader, limit int64, what string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, "read "+what, "", "%w", err)
	}
	if int64(len(b)) > limit {
		return nil, arenero.Errorf(arenero.TooLarge, "read "+what, "", "it is over %d MiB", limit/arenero.MiB).
			WithHint("put data into a file and hand it over with --file")
	}
	return b, nil
}

// languageOf guesses a program's language by its name.
func languageOf(name string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".py", ".ipy", "":
		return "python", nil
	case ".sh", ".bash":
		return "bash", nil
	default:
		return "", arenero.Errorf(arenero.Invalid, "run", printable(name), "the language of %q files is not known", printable(ext)).
			WithHint("say --kernel LANGUAGE, or run it as a command: arenero run --file %s -- node %s", printable(name), printable(filepath.Base(name)))
	}
}

func parseEnv(pairs []string) (map[string]string, error) {
	env := map[string]string{}
	for _, p := range pairs {
		k, v, given := strings.Cut(p, "=")
		if !given {
			v = getenv(k)
		}
		if k == "" || strings.ContainsRune(p, 0) {
			return nil, arenero.Errorf(arenero.Invalid, "read environment", "", "%q is not K=V", printable(p))
		}
		env[k] = v
	}
	return env, nil
}

// running is a job under way.
type running struct {
	*job

	m       *Main
	out     *outDir
	screen  *screen
	workdir string
	before  listing
	// collected says that what the program made has been taken out, or an error says why not.
	collected bool

	started     atomic.Bool   // the program runs: it can be interrupted
	interrupted atomic.Bool   // somebody asked it to stop
	interrupts  chan struct{} // asks the host to interrupt it
}

// inHouse builds the house a run needs, runs in it and takes it down again.
func (r *running) inHouse(ctx context.Context, data string) (res arenero.Result, err error) {
	h, err := openForRun(ctx, data)
	if err != nil {
		return res, err
	}
	defer func() {
		if cerr := h.close(ctx); err == nil {
			err = cerr
		}
	}()
	img, err := h.images.Get(ctx, r.spec.Image)
	if err != nil {
		return res, err
	}
	r.workdir = cmp.Or(img.Workdir, "/workspace")
	if r.script != nil {
		r.script.File = path.Join(r.workdir, r.script.File)
	}
	return h.host.RunOnce(ctx, host.Local(), host.Job{
		Spec: r.spec, Language: r.language, Code: r.code, Script: r.script,
		Argv: r.command, Stdin: r.stdin,
		OnStart: func(sb arenero.Sandbox) {
			if r.cmd.Verbose {
				fmt.Fprintf(r.m.Stderr, "arenero: sandbox %s, %s %s\n", sb.ID, sb.From, printable(sb.FromWhy))
			}
		},
		OnKernel:  func(e arenero.KernelEvent) error { return r.lost(r.screen.event(e)) },
		OnProcess: func(e arenero.ProcessEvent) error { return r.lost(r.screen.process(e)) },
		Interrupt: r.interrupts,
		Before:    r.copyIn,
		After:     r.collect,
	})
}

// copyIn is called before the program runs.
func (r *running) copyIn(ctx context.Context, g arenero.Guest) error {
	for _, f := range r.files {
		if err := copyIn(ctx, g, f, r.m.Stderr); err != nil {
			return err
		}
	}
	if r.script != nil {
		// The file is there for whoever opens __file__ or imports from beside it.
		if _, err := g.WriteFile(ctx, "", r.script.File, 0o644, strings.NewReader(r.code)); err != nil {
			return err
		}
	}
	if r.out != nil {
		var err error
		if r.before, err = list(ctx, g, r.workdir); err != nil {
			return err
		}
	}
	r.started.Store(true)
	return nil
}

// collect is called when the program has ended and its sandbox still stands.
func (r *running) collect(ctx context.Context, g arenero.Guest) error {
	if r.out == nil {
		return nil
	}
	r.collected = true
	saved, err := r.out.collect(ctx, g, r.workdir, r.before, r.spec.Limits.WithDefaults().Disk)
	slices.Sort(saved)
	for _, s := range saved {
		fmt.Fprintf(r.m.Stderr, "arenero: saved %s\n", printable(s))
	}
	return err
}

// lost is what becomes of a run whose output nobody can take any more. A pipe
// whose reader has gone is not a fault: head(1) does that.
func (r *running) lost(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EPIPE) {
		return status(128 + int(syscall.SIGPIPE))
	}
	return arenero.Errorf(arenero.Internal, "write output", "", "%w", err)
}
