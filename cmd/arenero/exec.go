package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

type execCmd struct {
	remote

	ID    string            `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	Env   map[string]string `help:"Environment of the command, as NAME=VALUE; may be repeated." placeholder:"NAME=VALUE"`
	Dir   string            `help:"Where it starts." placeholder:"DIR"`
	User  string            `help:"Who it runs as, inside." placeholder:"NAME"`
	Stdin bool              `short:"i" help:"Pass on standard input."`
	After []string          `kong:"-"` // what follows "--"
}

// Help is shown below the flags.
func (*execCmd) Help() string {
	return `The command follows "--": arenero exec ID -- ls -l. The exit status is the command's own. Ctrl-C interrupts it.`
}

// Run runs a command in a sandbox.
func (v *execCmd) Run(ctx context.Context, m *Main, c *cli) error {
	if len(v.After) == 0 {
		return arenero.Errorf(arenero.Invalid, "run command", "", "no command").WithHint(`write it after "--": arenero exec ID -- ls -l`)
	}
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	x, err := sb.Open(ctx, client.Shell{Argv: v.After, Env: v.Env, Dir: v.Dir, User: v.User})
	if err != nil {
		return err
	}
	defer x.Close()
	ints := make(chan os.Signal, 4)
	signal.Notify(ints, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(ints)
	go func() { // ends with the program
		for s := range ints {
			name := "SIGINT"
			if s == syscall.SIGTERM {
				name = "SIGTERM"
			}
			_ = x.Signal(name) // its end tells
		}
	}()
	if v.Stdin {
		go func() { // ends with the program: a read of a terminal can not be joined
			_, _ = io.Copy(x, m.Stdin) // a command that does not want it is no failure
			_ = x.CloseStdin()
		}()
	} else if err := x.CloseStdin(); err != nil {
		return err
	}
	s := newScreen(m, false, nil)
	return finish(x, s.stdout, s.stderr, s.close)
}

// finish shows a session to its end and gives the program its status.
func finish(x *client.Session, stdout, stderr io.Writer, done func() error) error {
	for {
		e, err := x.Next()
		if err != nil {
			return errors.Join(err, done())
		}
		switch {
		case e.Exit != nil:
			if err := done(); err != nil {
				return err
			}
			if e.Exit.Code != 0 {
				return status(e.Exit.Code)
			}
			return nil
		case len(e.Stdout) > 0:
			_, err = stdout.Write(e.Stdout)
		case len(e.Stderr) > 0:
			_, err = stderr.Write(e.Stderr)
		}
		if err != nil {
			return arenero.Errorf(arenero.Unavailable, "show output", "", "%w", err)
		}
	}
}

type shellCmd struct {
	remote

	ID      string   `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	Command []string `arg:"" optional:"" help:"What to run instead of a shell."`
	User    string   `help:"Who it runs as, inside." placeholder:"NAME"`
}

// Run opens a terminal in a sandbox. What runs there may use all that a terminal
// can: it is what one asks for here.
func (v *shellCmd) Run(ctx context.Context, m *Main, c *cli) error {
	if !isTerminal(m.Stdin) || !isTerminal(m.Stdout) {
		return arenero.Errorf(arenero.Invalid, "open shell", "", "this is not a terminal").WithHint("use: arenero exec -i ID -- command")
	}
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	argv := v.Command
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"}
	}
	x, err := sb.Open(ctx, client.Shell{Argv: argv, User: v.User, PTY: windowOf(m.Stdout)})
	if err != nil {
		return err
	}
	defer x.Close()
	old, err := term.MakeRaw(int(m.Stdin.Fd()))
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, "open shell", "", "%w", err)
	}
	restore := func() error { return term.Restore(int(m.Stdin.Fd()), old) }
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	defer signal.Stop(winch)
	go func() { // ends with the program
		for range winch {
			if w := windowOf(m.Stdout); w != nil {
				_ = x.Resize(*w) // the next one may get through
			}
		}
	}()
	go func() { // likewise: a read of a terminal can not be joined
		_, _ = io.Copy(x, m.Stdin)
	}()
	return finish(x, m.Stdout, m.Stderr, restore)
}

func windowOf(f *os.File) *client.Window {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return &client.Window{Cols: 80, Rows: 24}
	}
	return &client.Window{Cols: min(cols, 1000), Rows: min(rows, 1000)}
}
