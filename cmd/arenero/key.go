package main

import (
	"fmt"
	"path/filepath"

	"github.com/arenero/arenero/host"
)

type keyCmd struct {
	Show keyShowCmd `cmd:"" help:"Print the key of this machine's daemon."`
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
