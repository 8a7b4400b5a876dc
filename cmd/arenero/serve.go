package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/door/rest"
	"github.com/arenero/arenero/host"
)

type serveCmd struct {
	Listen       string         `help:"Address to listen on (${default})." default:"127.0.0.1:8000" env:"ARENERO_LISTEN" placeholder:"HOST:PORT"`
	Names        []string       `help:"Names it answers to besides localhost; * is any." placeholder:"NAME"`
	Platform     string         `help:"How gVisor runs guest code: systrap or kvm; without it, what works best here." enum:",systrap,kvm" default:"" placeholder:"NAME"`
	Lifetime     time.Duration  `help:"How long a sandbox lives that asks for no time (${default})." type:"seconds" default:"1h" placeholder:"TIME"`
	MaxLifetime  time.Duration  `help:"How long a sandbox may live (${default})." type:"seconds" default:"24h" placeholder:"TIME"`
	Idle         time.Duration  `help:"How long a sandbox may be unused and at rest before it sleeps (${default}), or never." type:"never" default:"5m" placeholder:"TIME"`
	Deep         time.Duration  `name:"hibernate-after" help:"How long a sandbox sleeps in memory before it goes to disk (${default}); never is when memory is short." type:"never" default:"10m" placeholder:"TIME"`
	MaxSleep     time.Duration  `help:"How long a sandbox may sleep before it is ended; without it, for ever." type:"never" placeholder:"TIME"`
	PoolMax      int            `help:"How many sandboxes of one size are kept ready when they are in demand (${default})." default:"4" placeholder:"N"`
	Pool         map[string]int `help:"How many sandboxes of an image are kept ready always." placeholder:"IMAGE=N"`
	OnStop       string         `help:"What becomes of the sandboxes when it stops: keep them for its next start, or kill (${default})." enum:"keep,kill" default:"keep"`
	MaxSandboxes int            `help:"How many there may be at once (${default})." default:"100" placeholder:"N"`
	Grace        time.Duration  `help:"How long calls may go on when it is asked to stop (${default})." type:"seconds" default:"10s" placeholder:"TIME"`
	NoWarm       bool           `help:"Make no warm snapshots by itself."`
	Debug        bool           `help:"Log more."`
}

// Help is shown below the flags.
func (*serveCmd) Help() string {
	return `Every flag may stand in the environment, where one is named, or in the YAML file of --config: a key per flag. The API key is made
at the first start, in a file that only its owner can read; "arenero key show" prints it.`
}

// Run serves until it is told to stop. Sandboxes outlive it, unless --on-stop
// says otherwise.
func (c *serveCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	level := slog.LevelInfo
	if c.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(m.Stderr, &slog.HandlerOptions{Level: level}))

	h, err := openForServe(cli.Data, host.Config{
		Log: log, Lifetime: c.Lifetime, MaxLifetime: c.MaxLifetime, Idle: max(c.Idle, 0),
		MaxSandboxes: c.MaxSandboxes, Warm: !c.NoWarm, Keep: c.OnStop == "keep",
		HibernateAfter: c.Deep, MaxSleep: max(c.MaxSleep, 0), PoolMax: c.PoolMax,
	}, c.Platform)
	if err != nil {
		return err
	}
	err = c.serve(ctx, m, cli, h, log)
	return errors.Join(err, h.close(ctx))
}

// serve is the wiring of a daemon: the door before the host, so that it is the
// door that stops first, while the host still answers what is under way.
func (c *serveCmd) serve(ctx context.Context, m *Main, cli *cli, h *house, log *slog.Logger) error {
	caps, err := h.engine.Probe(ctx)
	if err != nil {
		return err
	}
	if len(caps.Missing) > 0 {
		return arenero.Errorf(arenero.Unavailable, "serve", "", "%s", caps.Missing[0].What).WithHint("%s; see also: arenero doctor", caps.Missing[0].Mend)
	}
	sweepYards(ctx, cli.Data, log)
	for image, n := range c.Pool {
		if err := h.host.SetPool(ctx, host.Local(), arenero.Pool{Image: image, Min: n, Max: max(n, c.PoolMax)}); err != nil {
			return err
		}
	}
	_, made, err := h.host.LocalKey(ctx, keyFile(cli.Data))
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, "listen", printable(c.Listen), "%w", err).
			WithHint("choose another address with --listen")
	}
	door := rest.New(rest.Config{Host: h.host, Version: version, Names: c.Names, Log: log, Grace: c.Grace})

	was := "is"
	if made {
		was = "was made and is"
	}
	fmt.Fprintf(m.Stdout, "listening on http://%s\nthe API key %s in %s; arenero key show prints it\n", l.Addr(), was, keyFile(cli.Data))
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		log.Warn("others can reach this address, and keys travel in the clear: put a proxy with TLS before it", "listen", l.Addr().String())
	}
	// The host runs on while the door finishes its calls.
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var g errgroup.Group
	g.Go(func() error {
		defer end()
		select {
		case <-h.host.Ready():
		case <-running.Done():
		case <-ctx.Done():
		}
		return door.Serve(ctx, l)
	})
	g.Go(func() error {
		defer end()
		err := h.host.Run(running)
		if err != nil {
			l.Close() // nothing can be served: the door's Serve returns
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}
