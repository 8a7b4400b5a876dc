package enginetest

import (
	"context"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero/guest/agent"
	"github.com/arenero/arenero/guest/wire"
)

// localWorkdir is where user code starts in a box of the local engine.
const localWorkdir = "/home/user/work"

// LocalAgent makes this process the guest agent, and does not return, if it was
// started as one by the engine of [Local]. Call it first in TestMain.
func LocalAgent() {
	dir := os.Getenv(agentDir)
	if dir == "" {
		return
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := serveLocal(log); err != nil {
		log.Error("local agent", "err", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveLocal(log *slog.Logger) error {
	// The namespaces are fresh: make /proc show ours, give the user a home of its
	// own, and let nothing of it out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount("arenero", "/home", "tmpfs", 0, "size=256m,mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"/home/user", localWorkdir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chown(dir, 1000, 1000); err != nil {
			return err
		}
	}
	if err := os.Mkdir("/home/run", 0o700); err != nil {
		return err
	}
	if err := os.Unsetenv(agentDir); err != nil { // what runs inside is not an agent
		return err
	}
	a, err := agent.New(agent.Config{Env: os.Environ(), RunDir: "/home/run", Log: log})
	if err != nil {
		return err
	}
	return a.Serve(context.Background(), wire.Listen(os.Stdin, os.Stdout))
}
