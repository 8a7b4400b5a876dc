package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

type createCmd struct {
	remote
	sizes
	times
	mounts

	Image    string            `arg:"" optional:"" help:"What it is made of; python if left out."`
	Snapshot string            `help:"Start from a snapshot instead of an image." placeholder:"ID"`
	Env      map[string]string `help:"Environment of all that runs in it, as NAME=VALUE; may be repeated." placeholder:"NAME=VALUE"`
	Hostname string            `help:"Its host name; the id if left out." placeholder:"NAME"`
	Wait     time.Duration     `help:"How long to queue if this machine is full." type:"seconds" placeholder:"TIME"`
}

// Run makes a sandbox and prints its id.
func (v *createCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	volumes, err := v.mounts.mounts()
	if err != nil {
		return err
	}
	sb, err := v.client(c).Create(ctx, client.Spec{
		Image: v.Image, Snapshot: v.Snapshot, Limits: v.limits(), Env: v.Env, Labels: v.Label, Hostname: v.Hostname,
		Lifetime: v.Lifetime, Idle: v.Idle, OnTimeout: v.OnTimeout, Volumes: volumes, Wait: v.Wait,
	})
	if err != nil {
		return err
	}
	return v.show(m, sb.Info, func(w io.Writer) { fmt.Fprintln(w, printable(sb.ID())) })
}

type lsCmd struct {
	remote

	All   bool              `short:"a" help:"Those that ended within the last day, too."`
	State []arenero.State   `help:"Only in this state; may be repeated." placeholder:"STATE"`
	Image string            `help:"Only of this image." placeholder:"NAME"`
	Label map[string]string `help:"Only with this label; may be repeated." placeholder:"NAME=VALUE"`
	Quiet bool              `short:"q" help:"Ids alone."`
}

// Run lists sandboxes.
func (v *lsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	all := []arenero.Sandbox{}
	for sb, err := range v.client(c).Find(ctx, client.Filter{All: v.All, States: v.State, Image: v.Image, Labels: v.Label}) {
		if err != nil {
			return err
		}
		all = append(all, sb.Info)
	}
	return v.show(m, all, func(w io.Writer) {
		var rows [][]string
		for _, sb := range all {
			if v.Quiet {
				fmt.Fprintln(w, printable(sb.ID))
				continue
			}
			rows = append(rows, []string{
				sb.ID, string(sb.State), sb.Image, fmt.Sprintf("%g", sb.Limits.CPUs), mib(sb.Limits.Memory), age(sb.Created), left(sb), sb.From,
			})
		}
		if !v.Quiet {
			table(w, "ID STATE IMAGE CPUS MEMORY AGE LEFT MADE-BY", rows)
		}
	})
}

// left is how long a sandbox still lives.
func left(sb arenero.Sandbox) string {
	if sb.State != arenero.Running {
		return ""
	}
	return max(time.Until(sb.Ends), 0).Round(time.Second).String()
}

type getCmd struct {
	remote

	ID string `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
}

// Run tells all that is known of a sandbox, also of one that has ended.
func (v *getCmd) Run(ctx context.Context, m *Main, c *cli) error {
	sb, err := v.anySandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	return v.show(m, sb.Info, func(w io.Writer) { tellSandbox(w, sb.Info) })
}

func tellSandbox(w io.Writer, sb arenero.Sandbox) {
	rows := [][]string{
		{"id", sb.ID},
		{"state", string(sb.State)},
		{"image", sb.Image},
		{"engine", sb.Engine},
		{"limits", sb.Limits.String()},
		{"hostname", sb.Hostname},
		{"created", sb.Created.Local().Format(time.DateTime)},
		{"ends", sb.Ends.Local().Format(time.DateTime) + ", then " + string(sb.OnTimeout)},
		{"sleeps", "after " + time.Duration(sb.Idle).String() + " without use"},
		{"made by", sb.From},
	}
	if sb.Idle == 0 {
		rows[8][1] = "when told to"
	}
	for _, more := range [][]string{{"because", sb.FromWhy}, {"parent", sb.Parent}, {"snapshot", sb.Snapshot}, {"reason", sb.Reason}, {"exit reason", string(sb.ExitCause)}} {
		if more[1] != "" {
			rows = append(rows, more)
		}
	}
	for _, vol := range sb.Volumes {
		row := []string{"volume", vol.Name + " at " + vol.Path}
		if vol.ReadOnly {
			row[1] += ", read-only"
		}
		rows = append(rows, row)
	}
	for k, l := range sb.Labels {
		rows = append(rows, []string{"label", k + "=" + l})
	}
	for _, r := range rows {
		fmt.Fprintf(w, "%-12s %s\n", r[0], printable(r[1]))
	}
}

type updateCmd struct {
	remote
	times

	ID     string  `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	CPUs   float64 `name:"cpus" help:"Processors." placeholder:"N"`
	Memory int64   `help:"Memory, as 512M." type:"size" placeholder:"SIZE"`
}

// Run changes a sandbox while it lives.
func (v *updateCmd) Run(ctx context.Context, m *Main, c *cli) error {
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	p := arenero.Patch{Labels: v.Label}
	if v.Lifetime > 0 {
		p.Lifetime = &v.Lifetime
	}
	if v.Idle != 0 {
		p.Idle = &v.Idle
	}
	if v.OnTimeout != "" {
		p.OnTimeout = &v.OnTimeout
	}
	if v.CPUs > 0 || v.Memory > 0 {
		p.Limits = &arenero.Limits{CPUs: v.CPUs, Memory: v.Memory}
	}
	if err := sb.Update(ctx, p); err != nil {
		return err
	}
	return v.show(m, sb.Info, func(w io.Writer) { tellSandbox(w, sb.Info) })
}

type pauseCmd struct {
	remote

	ID   []string `arg:"" predictor:"sandbox" help:"Ids, or the beginnings of them."`
	Disk bool     `help:"On disk, where it takes no memory, instead of in memory."`
}

// Run puts sandboxes to sleep.
func (v *pauseCmd) Run(ctx context.Context, m *Main, c *cli) error {
	return v.each(ctx, m, c, v.ID, func(sb *client.Sandbox) error {
		if v.Disk {
			return sb.Hibernate(ctx)
		}
		return sb.Pause(ctx)
	})
}

// each does the same to several sandboxes and prints what they are then.
func (r *remote) each(ctx context.Context, m *Main, c *cli, ids []string, f func(*client.Sandbox) error) error {
	for _, id := range ids {
		sb, err := r.sandbox(ctx, c, id)
		if err != nil {
			return err
		}
		if err := f(sb); err != nil {
			return err
		}
		if err := r.show(m, sb.Info, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", printable(sb.ID()), printable(string(sb.Info.State))) }); err != nil {
			return err
		}
	}
	return nil
}

type resumeCmd struct {
	remote

	ID []string `arg:"" predictor:"sandbox" help:"Ids, or the beginnings of them."`
}

// Run wakes sandboxes.
func (v *resumeCmd) Run(ctx context.Context, m *Main, c *cli) error {
	return v.each(ctx, m, c, v.ID, func(sb *client.Sandbox) error { return sb.Resume(ctx) })
}

type killCmd struct {
	remote

	ID []string `arg:"" predictor:"sandbox" help:"Ids, or the beginnings of them."`
}

// Run ends sandboxes.
func (v *killCmd) Run(ctx context.Context, m *Main, c *cli) error {
	return v.each(ctx, m, c, v.ID, func(sb *client.Sandbox) error {
		if err := sb.Kill(ctx); err != nil {
			return err
		}
		return sb.Refresh(ctx)
	})
}

type forkCmd struct {
	remote
	times
	mounts

	ID    string            `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	Count int               `short:"n" help:"How many copies (${default})." default:"1" placeholder:"N"`
	Env   map[string]string `help:"Added to its environment, as NAME=VALUE; may be repeated." placeholder:"NAME=VALUE"`
}

// Run makes live copies of a sandbox and prints their ids.
func (v *forkCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	volumes, err := v.mounts.mounts()
	if err != nil {
		return err
	}
	forks, err := sb.Fork(ctx, v.Count, client.Spec{Env: v.Env, Labels: v.Label, Volumes: volumes, Lifetime: v.Lifetime, Idle: v.Idle, OnTimeout: v.OnTimeout})
	if err != nil {
		return err
	}
	all := make([]arenero.Sandbox, len(forks))
	for i, f := range forks {
		all[i] = f.Info
	}
	return v.show(m, all, func(w io.Writer) {
		for _, f := range all {
			fmt.Fprintln(w, printable(f.ID))
		}
	})
}

type snapshotCmd struct {
	Create snapshotCreateCmd `cmd:"" help:"Keep a sandbox as it is now; it goes on."`
	Ls     snapshotLsCmd     `cmd:"" help:"List snapshots."`
	Rm     snapshotRmCmd     `cmd:"" help:"Remove snapshots."`
}

type snapshotCreateCmd struct {
	remote

	ID   string `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	Name string `help:"A name, for people." placeholder:"NAME"`
}

// Run makes a snapshot and prints its id.
func (v *snapshotCreateCmd) Run(ctx context.Context, m *Main, c *cli) error {
	sb, err := v.sandbox(ctx, c, v.ID)
	if err != nil {
		return err
	}
	n, err := sb.Snapshot(ctx, v.Name)
	if err != nil {
		return err
	}
	return v.show(m, n, func(w io.Writer) { fmt.Fprintln(w, printable(n.ID)) })
}

type snapshotLsCmd struct {
	remote

	Sandbox string `help:"Only of this sandbox." placeholder:"ID"`
}

// Run lists snapshots.
func (v *snapshotLsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	all := []arenero.Snapshot{}
	of := ""
	if v.Sandbox != "" {
		sb, err := v.anySandbox(ctx, c, v.Sandbox)
		if err != nil {
			return err
		}
		of = sb.ID()
	}
	for n, err := range v.client(c).Snapshots(ctx, of) {
		if err != nil {
			return err
		}
		all = append(all, n)
	}
	return v.show(m, all, func(w io.Writer) {
		var rows [][]string
		for _, n := range all {
			state := "usable"
			if !n.Usable {
				state = n.Why
			}
			rows = append(rows, []string{n.ID, n.Name, n.Sandbox, mib(n.Size), age(n.Created), state})
		}
		table(w, "ID NAME SANDBOX SIZE AGE STATE", rows)
	})
}

type snapshotRmCmd struct {
	remote

	ID []string `arg:"" help:"Ids."`
}

// Run removes snapshots.
func (v *snapshotRmCmd) Run(ctx context.Context, _ *Main, c *cli) error {
	for _, part := range v.ID {
		id, err := v.snapshot(ctx, c, part)
		if err != nil {
			return err
		}
		if err := v.client(c).RemoveSnapshot(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

type rollbackCmd struct {
	remote

	ID       string `arg:"" predictor:"sandbox" help:"Its id, or the beginning of it."`
	Snapshot string `arg:"" help:"One of its own snapshots."`
}

// Run puts a sandbox back to one of its snapshots.
func (v *rollbackCmd) Run(ctx context.Context, m *Main, c *cli) error {
	id, err := v.snapshot(ctx, c, v.Snapshot)
	if err != nil {
		return err
	}
	return v.each(ctx, m, c, []string{v.ID}, func(sb *client.Sandbox) error { return sb.Rollback(ctx, id) })
}
