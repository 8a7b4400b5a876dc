package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

type logsCmd struct {
	remote

	ID     string `arg:"" optional:"" help:"Its id, or the beginning of it; all sandboxes if left out."`
	Follow bool   `short:"f" help:"Go on as things happen."`
	PID    int    `name:"pid" help:"The output of this process instead of what happened." placeholder:"PID"`
}

// Run shows what happened in a sandbox, or what a process of it wrote.
func (v *logsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	id := ""
	if v.ID != "" {
		sb, err := v.sandbox(ctx, c, v.ID)
		if arenero.CodeOf(err) == arenero.NotFound { // it may have ended: then the whole id is needed
			sb, err = v.client(c).Get(ctx, v.ID)
		}
		if err != nil {
			return err
		}
		if id = sb.ID(); v.PID > 0 {
			s := newScreen(m, false, nil)
			for e, err := range sb.Attach(ctx, v.PID) {
				if err != nil {
					return errors.Join(unlessStopped(ctx, err), s.close())
				}
				_, _ = s.stdout.Write(e.Stdout)
				_, _ = s.stderr.Write(e.Stderr)
			}
			return s.close()
		}
	}
	for e, err := range v.client(c).Events(ctx, id, 0, v.Follow) {
		if err != nil {
			return unlessStopped(ctx, err)
		}
		if v.JSON {
			if err := json.NewEncoder(m.Stdout).Encode(e); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintln(m.Stdout, printable(line(e)))
	}
	return nil
}

func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // to be stopped is how it ends
	}
	return err
}

// line is an event in words.
func line(e arenero.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", e.At.Local().Format("15:04:05.000"), e.Sandbox, e.Kind)
	if e.State != "" {
		fmt.Fprintf(&b, " %s", e.State)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Detail)) {
		fmt.Fprintf(&b, " %s=%q", k, e.Detail[k])
	}
	return b.String()
}

type portCmd struct {
	remote

	ID    string `arg:"" help:"Its id, or the beginning of it."`
	Ports string `arg:"" help:"PORT inside, or HERE:PORT."`
}

// Run makes a web server inside a sandbox answer on this machine.
func (v *portCmd) Run(ctx context.Context, m *Main, c *cli) error {
	const op = "forward port"
	ctx, stop := until(ctx)
	defer stop()
	here, inside, ok := strings.Cut(v.Ports, ":")
	if !ok {
		inside = here
	}
	port, err := strconv.Atoi(inside)
	if err != nil || port < 1 || port > 65535 {
		return arenero.Errorf(arenero.Invalid, op, "", "%q is not a port", printable(inside))
	}
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	target, err := url.Parse(sb.PortURL(port))
	if err != nil {
		return arenero.Errorf(arenero.Invalid, op, "", "%w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", here))
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, op, "", "%w", err).WithHint("choose another port here: arenero port ID HERE:%d", port)
	}
	key := v.client(c).Key
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Authorization", "Bearer "+key)
			r.Out.Header.Del("Origin") // of this listener, which the server does not know
			r.Out.Header.Del("Sec-Fetch-Site")
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, printable(err.Error()), http.StatusBadGateway)
		},
	}}
	fmt.Fprintf(m.Stdout, "http://%s is port %d of %s; Ctrl-C ends it\n", l.Addr(), port, printable(sb.ID()))
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	return nil
}

type poolCmd struct {
	Ls  poolLsCmd  `cmd:"" help:"List what is kept ready."`
	Set poolSetCmd `cmd:"" help:"Say how many sandboxes of an image are kept ready."`
}

type poolLsCmd struct{ remote }

// Run lists the pools.
func (v *poolLsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	all, err := v.client(c).Pools(ctx)
	if err != nil {
		return err
	}
	return v.show(m, all, func(w io.Writer) {
		var rows [][]string
		for _, p := range all {
			rows = append(rows, []string{
				p.Image, fmt.Sprintf("%g", p.CPUs), mib(p.Memory), strconv.Itoa(p.Min), strconv.Itoa(p.Max), strconv.Itoa(p.Target),
				strconv.Itoa(p.Ready), strconv.FormatInt(p.Hits, 10), strconv.FormatInt(p.Misses, 10), p.Why,
			})
		}
		table(w, "IMAGE CPUS MEMORY MIN MAX TARGET READY HITS MISSES NOTE", rows)
	})
}

type poolSetCmd struct {
	remote

	Image  string  `arg:"" help:"Of which image."`
	Min    int     `help:"Always ready." placeholder:"N"`
	Max    int     `help:"Never more; 0 leaves it to demand. The minimum if left out." default:"-1" placeholder:"N"`
	CPUs   float64 `name:"cpus" help:"Of one sandbox." placeholder:"N"`
	Memory int64   `help:"Of one sandbox, as 512M." type:"size" placeholder:"SIZE"`
}

// Run sets a pool.
func (v *poolSetCmd) Run(ctx context.Context, m *Main, c *cli) error {
	if v.Max < 0 {
		v.Max = v.Min
	}
	err := v.client(c).SetPool(ctx, arenero.Pool{Image: v.Image, CPUs: v.CPUs, Memory: v.Memory, Min: v.Min, Max: v.Max})
	if err != nil {
		return err
	}
	return (&poolLsCmd{v.remote}).Run(ctx, m, c)
}

type backupCmd struct {
	remote

	File string `arg:"" help:"Where the copy goes."`
}

// Run writes a copy of the server's records.
func (v *backupCmd) Run(ctx context.Context, _ *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	return save(v.File, func(w io.Writer) error { return v.client(c).Backup(ctx, w) })
}
