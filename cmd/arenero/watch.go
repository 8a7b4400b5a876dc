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

	ID     string `arg:"" optional:"" predictor:"sandbox" help:"Its id, or the beginning of it; all sandboxes if left out."`
	Follow bool   `short:"f" help:"Go on as things happen."`
	PID    int    `name:"pid" help:"The output of this process instead of what happened." placeholder:"PID"`
}

// Run shows what happened in a sandbox, or what a process of it wrote.
func (v *logsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	id := ""
	if v.ID != "" {
		sb, err := v.anySandbox(ctx, c, v.ID)
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
	return v.happened(ctx, m, c, id, 0, v.Follow)
}

type eventsCmd struct {
	remote

	Follow bool  `short:"f" help:"Go on as things happen."`
	After  int64 `help:"Only what came after the event of this number." placeholder:"SEQ"`
}

// Run shows what happened in all sandboxes.
func (v *eventsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	return v.happened(ctx, m, c, "", v.After, v.Follow)
}

// happened prints events, a line each; one JSON document unless it goes on.
func (r *remote) happened(ctx context.Context, m *Main, c *cli, sandbox string, after int64, follow bool) error {
	all := []arenero.Event{}
	for e, err := range r.client(c).Events(ctx, sandbox, after, follow) {
		switch {
		case err != nil:
			return unlessStopped(ctx, err)
		case r.JSON && !follow:
			all = append(all, e)
		case r.JSON:
			err = json.NewEncoder(m.Stdout).Encode(e)
		default:
			_, err = fmt.Fprintln(m.Stdout, printable(line(e)))
		}
		if err != nil {
			return arenero.Errorf(arenero.Internal, "write events", "", "%w", err)
		}
	}
	if r.JSON && !follow {
		return r.show(m, all, nil)
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

	ID    string `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
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
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", here))
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, op, "", "%w", err).WithHint("choose another port here: arenero port ID HERE:%d", port)
	}
	through := &httputil.ReverseProxy{
		Transport:     sb.Port(port),
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: r.In.Host}) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, printable(err.Error()), http.StatusBadGateway)
		},
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: ownPages(through)}
	fmt.Fprintf(m.Stdout, "http://%s is port %d of %s; Ctrl-C ends it\n", l.Addr(), port, printable(sb.ID()))
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	return nil
}

// ownPages refuses what pages of other sites ask of a forwarded port, by its
// address or by a name of theirs that was pointed to it: it is open to whoever
// uses this machine's browser.
func ownPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if !isLocal("http://"+r.Host) || origin != "" && origin != "http://"+r.Host || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			http.Error(w, "pages of other sites may not use this port", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
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
	return save(v.File, 0o600, func(w io.Writer) error { return v.client(c).Backup(ctx, w) })
}
