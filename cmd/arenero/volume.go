package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/arenero/arenero"
)

type volumeCmd struct {
	Create volumeCreateCmd `cmd:"" help:"Make a volume."`
	Ls     volumeLsCmd     `cmd:"" help:"List volumes."`
	Rm     volumeRmCmd     `cmd:"" help:"Remove volumes, with all that is in them."`
}

type volumeCreateCmd struct {
	remote

	Name string `arg:"" help:"Its name: a-z, 0-9 and '-'."`
	Size int64  `help:"How much it holds, as 512M; 1G if left out." type:"size" placeholder:"SIZE"`
}

// Run makes a volume and prints its name.
func (v *volumeCreateCmd) Run(ctx context.Context, m *Main, c *cli) error {
	vol, err := v.client(c).CreateVolume(ctx, v.Name, v.Size)
	if err != nil {
		return err
	}
	return v.show(m, vol, func(w io.Writer) { fmt.Fprintln(w, printable(vol.Name)) })
}

type volumeLsCmd struct{ remote }

// Run lists the volumes.
func (v *volumeLsCmd) Run(ctx context.Context, m *Main, c *cli) error {
	all, err := v.client(c).Volumes(ctx)
	if err != nil {
		return err
	}
	return v.show(m, all, func(w io.Writer) {
		var rows [][]string
		for _, vol := range all {
			rows = append(rows, []string{vol.Name, mib(vol.Quota), mib(vol.Used), age(vol.Created), strings.Join(vol.Holders, " ")})
		}
		table(w, "NAME SIZE USED AGE SANDBOXES", rows)
	})
}

type volumeRmCmd struct {
	remote

	Name []string `arg:"" help:"Names."`
}

// Run removes volumes.
func (v *volumeRmCmd) Run(ctx context.Context, _ *Main, c *cli) error {
	for _, name := range v.Name {
		if err := v.client(c).RemoveVolume(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// mounts is the flag of a sandbox's volumes.
type mounts struct {
	Volume []string `sep:"none" help:"A volume and where it is seen, as NAME:PATH or NAME:PATH:ro; may be repeated." placeholder:"NAME:PATH"`
}

func (f mounts) mounts() ([]arenero.VolumeMount, error) {
	var out []arenero.VolumeMount
	for _, s := range f.Volume {
		name, path, ok := strings.Cut(s, ":")
		path, readOnly := strings.CutSuffix(path, ":ro")
		if !ok || name == "" || !strings.HasPrefix(path, "/") {
			return nil, arenero.Errorf(arenero.Invalid, "read --volume", printable(s), "it is not NAME:PATH or NAME:PATH:ro")
		}
		out = append(out, arenero.VolumeMount{Name: name, Path: path, ReadOnly: readOnly})
	}
	return out, nil
}
