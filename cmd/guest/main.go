// Command guest is the agent inside every sandbox: PID 1 in its box, built static,
// carried by the main binary.
//
//	guest init [--wire=stdio] [--meter=box|sum] [--mount=FOLDER]...
//	guest version
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero/guest/agent"
	"github.com/arenero/arenero/guest/wire"
)

func main() {
	// One per sandbox: small is more than fast.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(48 << 20)
	runtime.GOMAXPROCS(1)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("want init or version")
	}
	switch args[0] {
	case "version":
		fmt.Println(agent.Version)
		return nil
	case "init":
		return serve(args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func serve(args []string) error {
	fs := flag.NewFlagSet("init", flag.ContinueOnError)
	end := fs.String("wire", "stdio", "the end of the wire: stdio")
	meter := fs.String("meter", "box", "what measures memory: box, where /proc/meminfo is the sandbox's own, or sum, of all processes")
	var mounts []string
	fs.Func("mount", "a folder that the engine mounted something at; may be given again", func(s string) error {
		mounts = append(mounts, s)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *end != "stdio" {
		return fmt.Errorf("unknown wire %q", *end)
	}
	if *meter != "box" && *meter != "sum" {
		return fmt.Errorf("unknown meter %q", *meter)
	}
	in, err := takeOver(0, unix.O_RDONLY)
	if err != nil {
		return err
	}
	out, err := takeOver(1, unix.O_WRONLY)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := agent.New(agent.Config{
		Init: true, Env: inherited(os.Environ()), SumMemory: *meter == "sum", Mounts: mounts, Log: log,
	})
	if err != nil {
		return err
	}
	for { // a sandbox outlives whoever held the other end
		if err := a.Serve(context.Background(), wire.Listen(in, out)); err != nil {
			log.Error("the wire failed", "err", err)
		}
		time.Sleep(time.Second)
	}
}

// takeOver moves an end of the wire away from where programs have their standard
// streams, and puts the null device there.
func takeOver(fd, mode int) (*os.File, error) {
	end, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("take over the wire: %w", err)
	}
	if err := unix.SetNonblock(end, true); err != nil { // so that deadlines work
		return nil, fmt.Errorf("take over the wire: %w", err)
	}
	null, err := unix.Open("/dev/null", mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	if err := unix.Dup3(null, fd, 0); err != nil {
		return nil, fmt.Errorf("take over the wire: %w", err)
	}
	return os.NewFile(uintptr(end), "wire"), unix.Close(null)
}

// inherited is what user code gets of the agent's own environment: not its home,
// which a container runtime sets by the account it starts the agent as.
func inherited(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
}
