// Command arenero runs code nobody reviewed in sandboxes, on the command line
// and over HTTP. One file per verb; serve.go wires the house together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/engine/gvisor"
)

// version is set by the linker.
var version = "dev"

// Exit statuses of our own. Everything else is the status of the program run.
const (
	statusUsage    = 2   // the command line makes no sense
	statusTimeout  = 124 // like timeout(1)
	statusFailed   = 1   // a verb other than run failed
	statusFault    = 125 // run itself failed, not the program, like docker run
	statusCanceled = 130 // Ctrl-C
	statusMemory   = 137 // like a shell after the kernel's OOM killer
)

func main() {
	// First of all: this process may be a sentry or a gofer, started by gVisor
	// with arguments and an environment of its own. Then this does not return.
	gvisor.Dispatch()
	closeOnExec()
	m := Main{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	os.Exit(m.Run(context.Background()))
}

// closeOnExec keeps what the one who started us left open from those we start: a
// sandbox must not hold a file of the host that nobody meant to give it.
func closeOnExec() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// Main is one call of the program. Tests make their own.
type Main struct {
	Args           []string
	Stdin          *os.File
	Stdout, Stderr *os.File
}

// cli is the whole command line.
type cli struct {
	Data   string          `help:"Folder of images, sandboxes and keys (${default})." default:"${data}" env:"ARENERO_DATA" placeholder:"DIR"`
	Config kong.ConfigFlag `help:"YAML file with values for flags; flags and environment come before it." env:"ARENERO_CONFIG" placeholder:"FILE"`

	Run   runCmd   `cmd:"" help:"Run a program in a sandbox of its own."`
	Serve serveCmd `cmd:"" help:"Serve sandboxes over HTTP."`

	Create   createCmd   `cmd:"" group:"Sandboxes of a server" help:"Make a sandbox and print its id."`
	Ls       lsCmd       `cmd:"" group:"Sandboxes of a server" help:"List sandboxes."`
	Get      getCmd      `cmd:"" group:"Sandboxes of a server" help:"Tell all that is known of a sandbox."`
	Exec     execCmd     `cmd:"" group:"Sandboxes of a server" help:"Run a command in a sandbox."`
	Shell    shellCmd    `cmd:"" group:"Sandboxes of a server" help:"Open a terminal in a sandbox."`
	Cp       cpCmd       `cmd:"" group:"Sandboxes of a server" help:"Copy files and folders into a sandbox and out of it."`
	Logs     logsCmd     `cmd:"" group:"Sandboxes of a server" help:"Show what happened, or what a process wrote."`
	Events   eventsCmd   `cmd:"" group:"Sandboxes of a server" help:"Show what happened in all sandboxes."`
	Top      topCmd      `cmd:"" group:"Sandboxes of a server" help:"Show what sandboxes use, as it changes."`
	Update   updateCmd   `cmd:"" group:"Sandboxes of a server" help:"Change a sandbox while it lives."`
	Pause    pauseCmd    `cmd:"" group:"Sandboxes of a server" help:"Put sandboxes to sleep; any use of one wakes it."`
	Resume   resumeCmd   `cmd:"" group:"Sandboxes of a server" help:"Wake sandboxes."`
	Fork     forkCmd     `cmd:"" group:"Sandboxes of a server" help:"Make live copies of a sandbox."`
	Snapshot snapshotCmd `cmd:"" group:"Sandboxes of a server" help:"Keep sandboxes as they are now."`
	Rollback rollbackCmd `cmd:"" group:"Sandboxes of a server" help:"Put a sandbox back to one of its snapshots."`
	Kill     killCmd     `cmd:"" group:"Sandboxes of a server" help:"End sandboxes."`
	Volume   volumeCmd   `cmd:"" group:"Sandboxes of a server" help:"Keep folders that outlive sandboxes."`
	Port     portCmd     `cmd:"" group:"Sandboxes of a server" help:"Reach a web server inside a sandbox."`
	Pool     poolCmd     `cmd:"" group:"Sandboxes of a server" help:"Keep sandboxes ready ahead of demand."`
	Bench    benchCmd    `cmd:"" group:"Sandboxes of a server" help:"Measure a server."`
	Backup   backupCmd   `cmd:"" group:"Sandboxes of a server" help:"Copy the records of the server."`

	Image   imageCmd   `cmd:"" help:"Build, pull, import, list and remove images."`
	Key     keyCmd     `cmd:"" help:"Make, list, show and revoke API keys."`
	Doctor  doctorCmd  `cmd:"" help:"Check this machine, and say how to mend what is missing."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Completion completionCmd `cmd:"" help:"Print what a shell needs to complete with the tab key."`
}

// status ends the program with a status that is not a failure of ours.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Run does what the arguments say and returns the exit status.
func (m *Main) Run(ctx context.Context) int {
	var c cli
	unsetEmpty()
	args, after := cutArgs(m.Args)
	c.Run.After, c.Exec.After = after, after
	parser, err := kong.New(&c,
		kong.Name("arenero"),
		kong.Description("A place where code nobody reviewed can run."),
		kong.Vars{"data": defaultData()},
		kong.Writers(m.Stdout, m.Stderr),
		kong.Configuration(readConfig),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.NamedMapper("size", sizeMapper{}),
		kong.NamedMapper("seconds", secondsMapper{}),
		kong.NamedMapper("never", neverMapper{}),
		kong.Exit(func(code int) { panic(status(code)) }), // after --help: kong would go on
	)
	if err != nil {
		say(m.Stderr, err)
		return statusFailed
	}
	if asked, err := completed(parser); asked {
		if err != nil {
			return statusFailed
		}
		return 0
	}
	k, err := parse(parser, args)
	if s, ok := errors.AsType[status](err); ok {
		return int(s)
	}
	if err == nil && after != nil {
		if verb, _, _ := strings.Cut(k.Command(), " "); verb != "run" && verb != "exec" {
			err = fmt.Errorf("%s takes nothing after --", verb)
		}
	}
	if err != nil {
		fmt.Fprintf(m.Stderr, "arenero: %s\n", printable(err.Error()))
		fmt.Fprintln(m.Stderr, "  hint: arenero --help")
		return statusUsage
	}
	c.Run.After, c.Exec.After = after, after
	k.BindTo(ctx, (*context.Context)(nil))
	err = k.Run(m, &c)
	if s, ok := errors.AsType[status](err); ok {
		return int(s)
	}
	if err != nil {
		say(m.Stderr, err)
		if strings.HasPrefix(k.Command(), "run") {
			return statusFault
		}
		return statusFailed
	}
	return 0
}

// unsetEmpty makes a variable that is set to nothing one that is not set: kong
// would take nothing for a value.
func unsetEmpty() {
	for _, kv := range os.Environ() {
		if k, v, _ := strings.Cut(kv, "="); v == "" && strings.HasPrefix(k, "ARENERO_") {
			_ = os.Unsetenv(k) // its name came from the environment
		}
	}
}

// parse turns kong's exit after --help into a value.
func parse(p *kong.Kong, args []string) (k *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(status)
			if !ok {
				panic(r)
			}
			err = s
		}
	}()
	return p.Parse(args)
}

// cutArgs takes what follows the first "--" of a run away from the parser: it is
// the program's, and no flag in it is ours.
func cutArgs(args []string) (ours, after []string) {
	i := slices.Index(args, "--")
	if i < 0 {
		return args, nil
	}
	// Not nil, so that "run --" can be told from "run".
	return args[:i], append([]string{}, args[i+1:]...)
}

// say prints an error as a person wants it: cause, code, hint.
func say(w io.Writer, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "arenero: %s", printable(err.Error()))
	if e, ok := errors.AsType[*arenero.Error](err); ok {
		fmt.Fprintf(&b, " (%s)", e.Code)
	}
	b.WriteByte('\n')
	if hint := arenero.HintOf(err); hint != "" {
		fmt.Fprintf(&b, "  hint: %s\n", printable(hint))
	}
	io.WriteString(w, b.String()) //nolint:errcheck // there is nowhere left to say it
}

// defaultData is where everything is kept when nobody says.
func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/arenero"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ".arenero"
	}
	return home + "/.local/share/arenero"
}
