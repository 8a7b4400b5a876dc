package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
	"github.com/arenero/arenero/host"
)

// remote is how a verb reaches a server. All of them go over its HTTP door, with
// the public client.
type remote struct {
	URL  string `name:"url" help:"Address of the server (${default})." default:"http://127.0.0.1:8000" env:"ARENERO_URL" placeholder:"URL"`
	JSON bool   `name:"json" help:"Print JSON."`
}

// client finds the key: of the environment, or the one that the daemon of this
// machine left for its owner, which is for this machine alone.
func (r *remote) client(c *cli) *client.Client {
	key := getenv("ARENERO_API_KEY")
	if key == "" && isLocal(r.URL) {
		key, _ = host.ReadKey(keyFile(c.Data)) // without one the server says what is missing
	}
	return client.New(r.URL, key)
}

// isLocal says whether an address is this machine's loopback.
func isLocal(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// sandbox finds a sandbox that has not ended by its id or the beginning of it.
func (r *remote) sandbox(ctx context.Context, c *cli, id string) (*client.Sandbox, error) {
	return r.find(ctx, c, id, client.Filter{})
}

// anySandbox finds one that may have ended, too.
func (r *remote) anySandbox(ctx context.Context, c *cli, id string) (*client.Sandbox, error) {
	return r.find(ctx, c, id, client.Filter{All: true})
}

// wholeID is the length of an id: "sbx-" and 26 characters.
const wholeID = 30

func (r *remote) find(ctx context.Context, c *cli, id string, f client.Filter) (*client.Sandbox, error) {
	const op = "find sandbox"
	cl := r.client(c)
	if len(id) >= wholeID {
		return cl.Get(ctx, id)
	}
	var found []*client.Sandbox
	for sb, err := range cl.Find(ctx, f) {
		if err != nil {
			return nil, err
		}
		if begins(sb.ID(), "sbx-", id) {
			found = append(found, sb)
		}
	}
	switch {
	case len(found) == 1 && id != "":
		return found[0], nil
	case len(found) == 0:
		return nil, arenero.Errorf(arenero.NotFound, op, printable(id), "no such sandbox").WithHint("arenero ls shows those there are")
	}
	return nil, arenero.Errorf(arenero.Invalid, op, printable(id), "%d sandboxes begin so: %s, %s", len(found), found[0].ID(), found[len(found)-1].ID()).
		WithHint("write more of it; arenero ls shows them")
}

// snapshot finds the id of a snapshot by the beginning of it.
func (r *remote) snapshot(ctx context.Context, c *cli, id string) (string, error) {
	const op = "find snapshot"
	if len(id) > wholeID {
		return id, nil
	}
	var found []string
	for n, err := range r.client(c).Snapshots(ctx, "") {
		if err != nil {
			return "", err
		}
		if begins(n.ID, "snap-", id) {
			found = append(found, n.ID)
		}
	}
	switch {
	case len(found) == 1 && id != "":
		return found[0], nil
	case len(found) == 0:
		return "", arenero.Errorf(arenero.NotFound, op, printable(id), "no such snapshot").WithHint("arenero snapshot ls shows those there are")
	}
	return "", arenero.Errorf(arenero.Invalid, op, printable(id), "%d snapshots begin so", len(found)).WithHint("write more of it; arenero snapshot ls shows them")
}

// begins says whether an id begins with what was written, with its kind or without.
func begins(id, kind, written string) bool {
	return strings.HasPrefix(id, written) || strings.HasPrefix(id, kind+written)
}

// until makes Ctrl-C end what the verb is at.
func until(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// show prints a value as JSON, or in the way that plain does.
func (r *remote) show(m *Main, v any, plain func(io.Writer)) error {
	if !r.JSON {
		plain(m.Stdout)
		return nil
	}
	e := json.NewEncoder(m.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows under headings; cells may hold anything.
func table(w io.Writer, head string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(head, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cmp.Or(cell, "-"))
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // a closed pipe is nobody's fault
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n/arenero.MiB) }

func age(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// sizes are the flags of a sandbox's limits.
type sizes struct {
	CPUs      float64       `name:"cpus" help:"Processors." placeholder:"N"`
	Memory    int64         `help:"Memory, as 512M." type:"size" placeholder:"SIZE"`
	Disk      int64         `help:"Bytes that may be written, as 1G." type:"size" placeholder:"SIZE"`
	PIDs      int           `name:"pids" help:"Processes and threads." placeholder:"N"`
	RunLimit  time.Duration `name:"run-timeout" help:"How long a run may take that names no time." type:"seconds" placeholder:"TIME"`
	OutputMax int64         `name:"output" help:"How much of a run's output is kept." type:"size" placeholder:"SIZE"`
}

func (s sizes) limits() arenero.Limits {
	return arenero.Limits{CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk, Processes: s.PIDs, Timeout: s.RunLimit, Output: s.OutputMax}
}

// times are the flags of a sandbox's times.
type times struct {
	Lifetime  time.Duration     `help:"How long it lives." type:"seconds" placeholder:"TIME"`
	Idle      time.Duration     `help:"How long it may be unused and at rest before it sleeps, or never." type:"never" placeholder:"TIME"`
	OnTimeout arenero.OnTimeout `help:"What becomes of it when its lifetime is over: kill or pause." enum:",kill,pause" default:"" placeholder:"WHAT"`
	Label     map[string]string `help:"Your own mark, as NAME=VALUE; may be repeated." placeholder:"NAME=VALUE"`
}
