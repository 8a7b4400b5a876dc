package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/arenero/arenero/client"
	"github.com/arenero/arenero/host"
)

type keyCmd struct {
	Show   keyShowCmd   `cmd:"" help:"Print the key of this machine's daemon."`
	Create keyCreateCmd `cmd:"" help:"Make a key and print it, this once."`
	Ls     keyLsCmd     `cmd:"" help:"List keys."`
	Revoke keyRevokeCmd `cmd:"" help:"Make keys worthless."`
}

type keyShowCmd struct{}

// keyFile is where serve leaves its key.
func keyFile(data string) string { return filepath.Join(data, "key") }

// Run prints the key that serve made at its first start.
func (*keyShowCmd) Run(m *Main, c *cli) error {
	key, err := host.ReadKey(keyFile(c.Data))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(m.Stdout, key)
	return err
}

type keyCreateCmd struct {
	remote

	Name      string        `help:"A name, for people." placeholder:"NAME"`
	Tenant    string        `help:"Whose it is; your own tenant if left out." placeholder:"NAME"`
	Scope     []string      `help:"What it may be used for: read, run (${default}) or admin." enum:"read,run,admin" default:"run" placeholder:"SCOPE"`
	Expires   time.Duration `help:"How long it is good for; for ever if left out." type:"seconds" placeholder:"TIME"`
	Sandboxes int           `help:"How many sandboxes at once." placeholder:"N"`
	Creates   int           `help:"How many sandboxes made in a minute." placeholder:"N"`
	CPUs      float64       `name:"cpus" help:"Processors of one sandbox." placeholder:"N"`
	Memory    int64         `help:"Memory of one sandbox, as 512M." type:"size" placeholder:"SIZE"`
	Disk      int64         `help:"Disk of one sandbox, as 1G." type:"size" placeholder:"SIZE"`
	Engine    string        `help:"The only engine it may use." placeholder:"NAME"`
}

// Run makes a key.
func (v *keyCreateCmd) Run(ctx context.Context, m *Main, c *cli) error {
	k := client.Key{Name: v.Name, Tenant: v.Tenant, Scopes: v.Scope, Ceilings: client.Ceilings{
		Sandboxes: v.Sandboxes, Creates: v.Creates, CPUs: v.CPUs, Memory: v.Memory, Disk: v.Disk, Engine: v.Engine,
	}}
	secret, err := v.client(c).MakeKey(ctx, k, v.Expires)
	if err != nil {
		return err
	}
	return v.show(m, map[string]string{"secret": secret}, func(w io.Writer) { fmt.Fprintln(w, printable(secret)) })
}

type keyLsCmd struct{ remote }

// Run lists the keys.
func (v *keyLsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	all, err := v.client(c).Keys(ctx)
	if err != nil {
		return err
	}
	return v.show(m, all, func(w io.Writer) {
		var rows [][]string
		for _, k := range all {
			expires, used := "never", "never"
			if k.Expires != nil {
				expires = k.Expires.Local().Format(time.DateTime)
			}
			if k.Used != nil {
				used = age(*k.Used) + " ago"
			}
			rows = append(rows, []string{k.ID, k.Name, k.Tenant, strings.Join(k.Scopes, ","), expires, used})
		}
		table(w, "ID NAME TENANT SCOPES EXPIRES USED", rows)
	})
}

type keyRevokeCmd struct {
	remote

	ID []string `arg:"" help:"Ids, as arenero key ls shows them."`
}

// Run revokes keys.
func (v *keyRevokeCmd) Run(ctx context.Context, _ *Main, c *cli) error {
	for _, id := range v.ID {
		if err := v.client(c).RevokeKey(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
