package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/image"
)

type imageCmd struct {
	Build   imageBuildCmd   `cmd:"" help:"Build an image from a recipe."`
	Pull    imagePullCmd    `cmd:"" help:"Make an image of one in an OCI registry."`
	Import  imageImportCmd  `cmd:"" help:"Make an image of a docker-save or OCI-layout file or folder."`
	Ls      imageLsCmd      `cmd:"" help:"List images."`
	Inspect imageInspectCmd `cmd:"" help:"Show all that is known of an image."`
	Warm    imageWarmCmd    `cmd:"" help:"Make the warm snapshot of an image anew."`
	Rm      imageRmCmd      `cmd:"" help:"Remove images."`
}

type imageBuildCmd struct {
	Recipe string `arg:"" help:"Name of a recipe that comes with arenero (python, minimal), or a YAML file."`
	Force  bool   `help:"Build even if there is an image of this recipe."`
	NoWarm bool   `help:"Make no warm snapshot."`
}

// Run builds an image and warms it.
func (c *imageBuildCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	recipe, err := image.LoadRecipe(c.Recipe)
	if err != nil {
		return err
	}
	return c.make(ctx, m, cli, func(s *image.Store, p image.Progress) (arenero.Image, error) {
		if have, err := s.Inspect(ctx, recipe.Name); err == nil && !c.Force && have.Recipe == recipe.Digest() {
			fmt.Fprintf(m.Stderr, "%s was built of this recipe already; --force builds it again\n", printable(recipe.Name))
			return have.Image, nil
		}
		return s.Build(ctx, recipe, p)
	})
}

// make makes an image in one of three ways and warms it.
func (c *imageBuildCmd) make(ctx context.Context, m *Main, cli *cli, do func(*image.Store, image.Progress) (arenero.Image, error)) error {
	s, err := image.Open(filepath.Join(cli.Data, "images"))
	if err != nil {
		return err
	}
	bar := newBar(m)
	img, err := do(s, bar.progress)
	bar.done()
	if err != nil {
		return err
	}
	fmt.Fprintf(m.Stdout, "image %s, %d MiB, %s\n", printable(img.Name), img.Size/arenero.MiB, img.Digest)
	if c.NoWarm || len(img.Warm) == 0 {
		return nil
	}
	return warm(ctx, m, cli.Data, img)
}

// warm makes the snapshot that lets sandboxes start with their libraries loaded.
func warm(ctx context.Context, m *Main, data string, img arenero.Image) error {
	h, err := openForRun(ctx, data)
	if err != nil {
		return err
	}
	fmt.Fprintf(m.Stderr, "warming %s: booting it once and loading its libraries\n", printable(img.Name))
	start := time.Now()
	err = h.host.WarmImage(ctx, img)
	err = errors.Join(err, h.close(ctx))
	if err != nil {
		return arenero.Errorf(arenero.CodeOf(err), "warm image", printable(img.Name), "%w", err).
			WithHint("the image can be used as it is, sandboxes start slower; try again with: arenero image warm %s", printable(img.Name))
	}
	fmt.Fprintf(m.Stderr, "%s is warm, %s\n", printable(img.Name), time.Since(start).Round(100*time.Millisecond))
	return nil
}

type imagePullCmd struct {
	Ref      string `arg:"" help:"Reference: debian:bookworm-slim, registry/name@sha256:..."`
	Name     string `help:"Name to give it; without, the reference's." placeholder:"NAME"`
	Platform string `help:"Platform to choose." default:"linux/amd64"`
}

// Run pulls an image from a registry.
func (c *imagePullCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	return (&imageBuildCmd{}).make(ctx, m, cli, func(s *image.Store, p image.Progress) (arenero.Image, error) {
		return s.Pull(ctx, c.Ref, image.Options{Name: c.Name, Platform: c.Platform}, p)
	})
}

type imageImportCmd struct {
	Path string `arg:"" help:"File of docker save, or an OCI layout as a file or folder."`
	Name string `help:"Name to give it; without, the one in the file." placeholder:"NAME"`
}

// Run imports an image from disk.
func (c *imageImportCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	return (&imageBuildCmd{}).make(ctx, m, cli, func(s *image.Store, p image.Progress) (arenero.Image, error) {
		return s.Import(ctx, c.Path, image.Options{Name: c.Name}, p)
	})
}

type imageLsCmd struct {
	JSON bool `help:"As JSON." name:"json"`
}

// Run lists images.
func (c *imageLsCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	s, err := image.Open(filepath.Join(cli.Data, "images"))
	if err != nil {
		return err
	}
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		if all == nil {
			all = []arenero.Image{}
		}
		return printJSON(m.Stdout, all)
	}
	w := tabwriter.NewWriter(m.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tCREATED\tKERNELS\tDIGEST")
	for _, i := range all {
		var kernels []string
		for _, k := range i.Kernels {
			kernels = append(kernels, printable(k.Language))
		}
		fmt.Fprintf(w, "%s\t%d MiB\t%s\t%s\t%.19s\n", printable(i.Name), i.Size/arenero.MiB,
			i.Created.Local().Format("2006-01-02 15:04"), strings.Join(kernels, ","), printable(i.Digest))
	}
	return w.Flush()
}

type imageInspectCmd struct {
	Name string `arg:"" help:"Name or digest."`
}

// Run shows an image's manifest.
func (c *imageInspectCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	s, err := image.Open(filepath.Join(cli.Data, "images"))
	if err != nil {
		return err
	}
	d, err := s.Inspect(ctx, c.Name)
	if err != nil {
		return err
	}
	return printJSON(m.Stdout, d)
}

type imageWarmCmd struct {
	Name string `arg:"" help:"Name or digest."`
}

// Run makes the warm snapshot of an image unless it has one that fits.
func (c *imageWarmCmd) Run(ctx context.Context, m *Main, cli *cli) error {
	s, err := image.Open(filepath.Join(cli.Data, "images"))
	if err != nil {
		return err
	}
	img, err := s.Get(ctx, c.Name)
	if err != nil {
		return err
	}
	if len(img.Warm) == 0 {
		return arenero.Errorf(arenero.Invalid, "warm image", printable(img.Name), "its recipe names no kernels to keep warm")
	}
	return warm(ctx, m, cli.Data, img)
}

type imageRmCmd struct {
	Names []string `arg:"" help:"Names."`
}

// Run removes images and their snapshots.
func (c *imageRmCmd) Run(ctx context.Context, _ *Main, cli *cli) error {
	s, err := image.Open(filepath.Join(cli.Data, "images"))
	if err != nil {
		return err
	}
	for _, n := range c.Names {
		if err := s.Remove(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// A bar shows how a long job comes along: a bar on a terminal, one line a step
// elsewhere.
type bar struct {
	w     io.Writer
	pool  *mpb.Progress // nil without a terminal
	cur   *mpb.Bar
	step  string
	start time.Time
}

func newBar(m *Main) *bar {
	b := &bar{w: m.Stderr, start: time.Now()}
	if isTerminal(m.Stderr) {
		b.pool = mpb.New(mpb.WithOutput(m.Stderr), mpb.WithWidth(40))
	}
	return b
}

// progress is an image.Progress.
func (b *bar) progress(step string, done, total int64) {
	step = printable(step)
	if step != b.step {
		b.step = step
		if b.pool == nil {
			fmt.Fprintf(b.w, "%6.1fs  %s\n", time.Since(b.start).Seconds(), step)
			return
		}
		b.finish()
		b.cur = b.pool.AddBar(total,
			mpb.PrependDecorators(decor.Name(step, decor.WCSyncSpaceR), decor.Percentage(decor.WC{W: 5})),
			mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_GO)),
		)
	}
	if b.cur != nil {
		b.cur.SetTotal(max(total, done), false)
		b.cur.SetCurrent(done)
	}
}

func (b *bar) finish() {
	if b.cur != nil {
		b.cur.SetTotal(-1, true) // complete where it is
		b.cur = nil
	}
}

func (b *bar) done() {
	b.finish()
	if b.pool != nil {
		b.pool.Wait()
	}
}
