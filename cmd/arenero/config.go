package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// config gives flags the values of a YAML file: one key per flag, by its name.
// Flags on the command line and environment variables come before it.
type config map[string]any

// readConfig reads a file for kong.
func readConfig(r io.Reader) (kong.Resolver, error) {
	c := config{}
	if err := yaml.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return c, nil
}

// Validate refuses a key that is no flag: a word misspelt is a limit not set.
func (c config) Validate(app *kong.Application) error {
	var known []string
	_ = kong.Visit(app, func(n kong.Visitable, next kong.Next) error { // nothing below returns an error
		if f, ok := n.(*kong.Flag); ok {
			known = append(known, f.Name)
		}
		return next(nil)
	})
	for key := range c {
		if !slices.Contains(known, flagName(key)) {
			return fmt.Errorf("configuration: %q is not a flag", key)
		}
	}
	return nil
}

// Resolve implements kong.Resolver.
func (c config) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil //nolint:nilnil // kong's way to say: not from here
		}
	}
	for key, v := range c {
		if flagName(key) != flag.Name {
			continue
		}
		switch v := v.(type) {
		case []any:
			return slices.Clone(v), nil
		case bool:
			return v, nil
		default:
			return fmt.Sprint(v), nil
		}
	}
	return nil, nil //nolint:nilnil // see above
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }
