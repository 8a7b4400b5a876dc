package client

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// At names a sandbox without asking the server about it; Info holds the id alone.
func (c *Client) At(id string) *Sandbox { return &Sandbox{Info: arenero.Sandbox{ID: id}, c: c} }

// Filter chooses what [Client.Find] goes through. The zero value chooses all that
// have not ended.
type Filter struct {
	All    bool // those that ended within the last day too
	States []arenero.State
	Image  string
	Labels map[string]string // all of these
}

func (f Filter) query() url.Values {
	q := url.Values{}
	if f.All {
		q.Set("all", "true")
	}
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		q.Set("state", strings.Join(states, ","))
	}
	if f.Image != "" {
		q.Set("image", f.Image)
	}
	for k, v := range f.Labels {
		q.Add("label", k+"="+v)
	}
	return q
}

// List goes through the sandboxes that have not ended. It asks for a page at a
// time, and stops at the first error.
func (c *Client) List(ctx context.Context) iter.Seq2[*Sandbox, error] { return c.Find(ctx, Filter{}) }

// Find is List with a choice.
func (c *Client) Find(ctx context.Context, f Filter) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		q := f.query()
		for {
			var page struct {
				Sandboxes []arenero.Sandbox `json:"sandboxes"`
				Next      string            `json:"next"`
			}
			if err := c.call(ctx, "list sandboxes", "GET", "/v1/sandboxes?"+q.Encode(), nil, &page); err != nil {
				yield(nil, err)
				return
			}
			for _, info := range page.Sandboxes {
				if !yield(&Sandbox{Info: info, c: c}, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("after", page.Next)
		}
	}
}

// Update changes the sandbox while it lives.
func (s *Sandbox) Update(ctx context.Context, p arenero.Patch) error {
	body := struct {
		Lifetime  *float64           `json:"lifetime,omitempty"`
		Idle      *float64           `json:"idle,omitempty"`
		OnTimeout *arenero.OnTimeout `json:"on_timeout,omitempty"`
		Labels    *map[string]string `json:"labels,omitempty"` // an empty one takes all labels off
		Limits    *limits            `json:"limits,omitempty"`
	}{OnTimeout: p.OnTimeout}
	if p.Labels != nil {
		body.Labels = &p.Labels
	}
	for _, t := range []struct {
		from *time.Duration
		to   **float64
	}{{p.Lifetime, &body.Lifetime}, {p.Idle, &body.Idle}} {
		if t.from != nil {
			sec := t.from.Seconds()
			*t.to = &sec
		}
	}
	if p.Limits != nil {
		l := limitsOf(*p.Limits)
		body.Limits = &l
	}
	return s.change(ctx, "update sandbox", "PATCH", s.path(""), body)
}

// Pause stops the sandbox in memory; any use of it wakes it, in milliseconds.
func (s *Sandbox) Pause(ctx context.Context) error { return s.sleep(ctx, "memory") }

// Hibernate writes the sandbox to disk and frees its memory; any use of it wakes
// it, with all that runs in it.
func (s *Sandbox) Hibernate(ctx context.Context) error { return s.sleep(ctx, "disk") }

func (s *Sandbox) sleep(ctx context.Context, to string) error {
	return s.change(ctx, "pause sandbox", "POST", s.path("/pause"), map[string]string{"to": to})
}

// Resume wakes the sandbox.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.change(ctx, "resume sandbox", "POST", s.path("/resume"), nil)
}

// Fork makes live copies of the sandbox, all or none. Of spec, what is left out
// is the sandbox's.
func (s *Sandbox) Fork(ctx context.Context, count int, spec Spec) ([]*Sandbox, error) {
	body := struct {
		Count     int                   `json:"count"`
		Env       map[string]string     `json:"env,omitempty"`
		Labels    map[string]string     `json:"labels,omitempty"`
		Limits    limits                `json:"limits"`
		Lifetime  float64               `json:"lifetime,omitempty"`
		Idle      float64               `json:"idle,omitempty"`
		OnTimeout arenero.OnTimeout     `json:"on_timeout,omitempty"`
		Volumes   []arenero.VolumeMount `json:"volumes,omitempty"`
	}{count, spec.Env, spec.Labels, limitsOf(spec.Limits), spec.Lifetime.Seconds(), spec.Idle.Seconds(), spec.OnTimeout, spec.Volumes}
	var out struct {
		Sandboxes []arenero.Sandbox `json:"sandboxes"`
	}
	if err := s.c.callOnce(ctx, "fork sandbox", "POST", s.path("/fork"), cmp.Or(spec.IdempotencyKey, newKey()), body, &out); err != nil {
		return nil, err
	}
	all := make([]*Sandbox, len(out.Sandboxes))
	for i, info := range out.Sandboxes {
		all[i] = &Sandbox{Info: info, c: s.c}
	}
	return all, nil
}

// Snapshot keeps the sandbox as it is now; it goes on. The name is for people.
func (s *Sandbox) Snapshot(ctx context.Context, name string) (arenero.Snapshot, error) {
	var out arenero.Snapshot
	err := s.c.callOnce(ctx, "snapshot sandbox", "POST", s.path("/snapshots"), newKey(), map[string]string{"name": name}, &out)
	return out, err
}

// Rollback puts the sandbox back to one of its own snapshots.
func (s *Sandbox) Rollback(ctx context.Context, snapshot string) error {
	return s.change(ctx, "roll back sandbox", "POST", s.path("/rollback"), map[string]string{"snapshot": snapshot})
}

// Usage is what a sandbox uses now.
type Usage struct {
	CPU       float64        `json:"cpu_seconds"` // since it was made or last woke
	Memory    int64          `json:"memory"`      // bytes; 0 while it sleeps on disk
	MaxMemory int64          `json:"max_memory"`
	Tasks     int            `json:"tasks"`
	Limits    arenero.Limits `json:"limits"`
}

// Usage measures the sandbox, from outside; it is not woken.
func (s *Sandbox) Usage(ctx context.Context) (Usage, error) {
	var out Usage
	err := s.c.call(ctx, "measure sandbox", "GET", s.path("/usage"), nil, &out)
	return out, err
}

// Snapshots goes through the snapshots there are, of one sandbox or, with "", of
// all.
func (c *Client) Snapshots(ctx context.Context, sandbox string) iter.Seq2[arenero.Snapshot, error] {
	return func(yield func(arenero.Snapshot, error) bool) {
		q := url.Values{}
		if sandbox != "" {
			q.Set("sandbox", sandbox)
		}
		for {
			var page struct {
				Snapshots []arenero.Snapshot `json:"snapshots"`
				Next      string             `json:"next"`
			}
			if err := c.call(ctx, "list snapshots", "GET", "/v1/snapshots?"+q.Encode(), nil, &page); err != nil {
				yield(arenero.Snapshot{}, err)
				return
			}
			for _, n := range page.Snapshots {
				if !yield(n, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("after", page.Next)
		}
	}
}

// GetSnapshot finds a snapshot by its id. [arenero.NotFound] when there is none.
func (c *Client) GetSnapshot(ctx context.Context, id string) (arenero.Snapshot, error) {
	var out arenero.Snapshot
	err := c.call(ctx, "get snapshot", "GET", "/v1/snapshots/"+escape(id), nil, &out)
	return out, err
}

// RemoveSnapshot removes a snapshot; sandboxes made of it live on.
func (c *Client) RemoveSnapshot(ctx context.Context, id string) error {
	return c.call(ctx, "remove snapshot", "DELETE", "/v1/snapshots/"+escape(id), nil, nil)
}

// Events goes through what happened after a sequence number, in one sandbox or,
// with "", in all. With follow it goes on as things happen until ctx ends, also
// over a restart of the server.
func (c *Client) Events(ctx context.Context, sandbox string, after int64, follow bool) iter.Seq2[arenero.Event, error] {
	path := "/v1/events"
	if sandbox != "" {
		path = "/v1/sandboxes/" + escape(sandbox) + "/events"
	}
	return func(yield func(arenero.Event, error) bool) {
		for {
			var page struct {
				Events []arenero.Event `json:"events"`
				Next   int64           `json:"next"`
			}
			q := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {"1000"}}
			if follow {
				q.Set("wait", "true")
			}
			err := c.call(ctx, "read events", "GET", path+"?"+q.Encode(), nil, &page)
			if follow && arenero.CodeOf(err) == arenero.Unavailable && sleep(ctx, time.Second) {
				continue // it may be restarting
			}
			if err != nil {
				yield(arenero.Event{}, err)
				return
			}
			for _, e := range page.Events {
				if !yield(e, nil) {
					return
				}
			}
			after = page.Next
			if !follow && len(page.Events) == 0 {
				return
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Pools lists what the server keeps ready.
func (c *Client) Pools(ctx context.Context) ([]arenero.Pool, error) {
	var out struct {
		Pools []arenero.Pool `json:"pools"`
	}
	err := c.call(ctx, "list pools", "GET", "/v1/pools", nil, &out)
	return out.Pools, err
}

// SetPool says how many sandboxes of an image and a size are kept ready; max 0
// leaves it to demand.
func (c *Client) SetPool(ctx context.Context, p arenero.Pool) error {
	body := struct {
		Image  string  `json:"image"`
		CPUs   float64 `json:"cpus,omitempty"`
		Memory int64   `json:"memory,omitempty"`
		Min    int     `json:"min"`
		Max    int     `json:"max"`
	}{p.Image, p.CPUs, p.Memory, p.Min, p.Max}
	return c.call(ctx, "set pool", "PUT", "/v1/pools", body, nil)
}

// A Key is what is known of an API key.
type Key struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Tenant   string     `json:"tenant"`
	Scopes   []string   `json:"scopes"`
	Ceilings Ceilings   `json:"ceilings"`
	Created  time.Time  `json:"created"`
	Expires  *time.Time `json:"expires,omitempty"`
	Used     *time.Time `json:"used,omitempty"`
}

// Ceilings bound what the owner of a key may have; 0 is no bound of its own.
type Ceilings struct {
	Sandboxes int     `json:"sandboxes,omitempty"` // at once
	CPUs      float64 `json:"cpus,omitempty"`      // of one sandbox
	Memory    int64   `json:"memory,omitempty"`    // bytes, of one sandbox
	Disk      int64   `json:"disk,omitempty"`      // bytes, of one sandbox
	Creates   int     `json:"creates,omitempty"`   // sandboxes made in a minute
	Engine    string  `json:"engine,omitempty"`    // the only one it may use
}

// Keys lists the keys that the caller may see.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	var out struct {
		Keys []Key `json:"keys"`
	}
	err := c.call(ctx, "list keys", "GET", "/v1/keys", nil, &out)
	return out.Keys, err
}

// MakeKey makes a key, of which name, tenant, scopes and ceilings count, and
// returns its secret: the only time it is told. life 0 is for ever.
func (c *Client) MakeKey(ctx context.Context, k Key, life time.Duration) (string, error) {
	body := struct {
		Name     string   `json:"name,omitempty"`
		Tenant   string   `json:"tenant,omitempty"`
		Scopes   []string `json:"scopes,omitempty"`
		Ceilings Ceilings `json:"ceilings"`
		Expires  float64  `json:"expires_in,omitempty"`
	}{k.Name, k.Tenant, k.Scopes, k.Ceilings, life.Seconds()}
	var out struct {
		Secret string `json:"secret"`
	}
	err := c.call(ctx, "make key", "POST", "/v1/keys", body, &out)
	return out.Secret, err
}

// RevokeKey makes a key worthless at once.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.call(ctx, "revoke key", "DELETE", "/v1/keys/"+escape(id), nil, nil)
}

// Backup writes a copy of the server's records to w: an SQLite file.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	const op = "back up"
	resp, err := c.get(ctx, op, "/v1/backup", octets)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return broken(ctx, op, err)
	}
	return nil
}

// Processes lists what was started in the sandbox and runs.
func (s *Sandbox) Processes(ctx context.Context) ([]arenero.ProcessInfo, error) {
	var out struct {
		Processes []arenero.ProcessInfo `json:"processes"`
	}
	err := s.c.call(ctx, "list processes", "GET", s.path("/processes"), nil, &out)
	return out.Processes, err
}

// Start starts a command that goes on by itself and returns its pid. Its Stdin is
// not used: see [Sandbox.Join].
func (s *Sandbox) Start(ctx context.Context, cmd Command) (int, error) {
	var out struct {
		PID int `json:"pid"`
	}
	err := s.c.callOnce(ctx, "start process", "POST", s.path("/processes"), cmd.IdempotencyKey, cmd.wire(), &out)
	return out.PID, err
}

// Attach goes through what a process has written and writes, and its end.
func (s *Sandbox) Attach(ctx context.Context, pid int) iter.Seq2[arenero.ProcessEvent, error] {
	return func(yield func(arenero.ProcessEvent, error) bool) {
		for e, err := range s.c.watch(ctx, "attach process", s.path("/processes/"+strconv.Itoa(pid)+"/output")) {
			var out arenero.ProcessEvent
			if err == nil {
				out, err = processEvent(e)
			}
			if err == nil && out.Exit == nil && out.Stdout == nil && out.Stderr == nil {
				continue
			}
			if !yield(out, err) || err != nil || out.Exit != nil {
				return
			}
		}
	}
}

// Signal sends a signal ("SIGTERM") to a process, or to all that it started.
func (s *Sandbox) Signal(ctx context.Context, pid int, signal string, tree bool) error {
	return s.c.call(ctx, "signal process", "POST", s.path("/processes/"+strconv.Itoa(pid)+"/signal"),
		map[string]any{"signal": signal, "tree": tree}, nil)
}

// Watch goes through the changes below a folder as they happen, until ctx ends.
func (s *Sandbox) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[arenero.FileEvent, error] {
	return func(yield func(arenero.FileEvent, error) bool) {
		target := s.file("/watch", path) + "&recursive=" + strconv.FormatBool(recursive)
		for e, err := range s.c.watch(ctx, "watch files", target) {
			if err == nil && e.name != "change" {
				continue
			}
			var out arenero.FileEvent
			if err == nil {
				err = json.Unmarshal(e.data, &out)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}
