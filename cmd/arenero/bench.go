package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

type benchCmd struct {
	remote

	Count int   `short:"n" help:"How many of each (${default})." default:"20" placeholder:"N"`
	Burst int   `help:"How many sandboxes in the burst (${default})." default:"10" placeholder:"N"`
	Forks int   `help:"How many copies of one sandbox (${default})." default:"5" placeholder:"N"`
	File  int64 `help:"Size of the file that goes in and out (${default})." type:"size" default:"256M" placeholder:"SIZE"`
	Pool  int   `help:"How many sandboxes are kept ready meanwhile (${default})." default:"4" placeholder:"N"`
}

// Help is shown below the flags.
func (*benchCmd) Help() string {
	return `Measures a server through its door, as its clients see it, with sandboxes of its own; the image python must be warm.
Run it when nothing else does: the figures are of this machine at this moment.`
}

// A measure is one row of the table.
type measure struct {
	What   string  `json:"what"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Unit   string  `json:"unit"`
	Runs   int     `json:"runs"`
}

// gauge runs the measurements of one bench.
type gauge struct {
	*client.Client

	n    int
	rows []measure
	live func(measure)
	mine []*client.Sandbox // that it made and has not ended
}

// Run measures and prints a table.
func (v *benchCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	g := &gauge{Client: v.client(c), n: v.Count, live: func(measure) {}}
	if !v.JSON {
		load, _ := os.ReadFile("/proc/loadavg") // not everywhere
		fmt.Fprintf(m.Stdout, "%s, %d CPUs, load %.4s\n\n| what | median | p99 | runs |\n|---|---|---|---|\n",
			time.Now().Format("2006-01-02 15:04"), runtime.NumCPU(), load)
		g.live = func(r measure) {
			fmt.Fprintf(m.Stdout, "| %s | %.1f %s | %.1f | %d |\n", r.What, r.Median, r.Unit, r.P99, r.Runs)
		}
	}
	defer g.clear(ctx)
	for _, f := range []func(context.Context) error{
		func(ctx context.Context) error { return g.pool(ctx, v.Pool) },
		g.empty, g.uses, g.sleeps,
		func(ctx context.Context) error { return g.forks(ctx, v.Forks) },
		func(ctx context.Context) error { return g.burst(ctx, v.Burst) },
		func(ctx context.Context) error { return g.files(ctx, v.File) },
	} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	if v.JSON {
		return json.NewEncoder(m.Stdout).Encode(g.rows)
	}
	return nil
}

func (g *gauge) row(what, unit string, values []float64) {
	slices.Sort(values)
	r := measure{What: what, Unit: unit, Runs: len(values), Median: values[len(values)/2], P99: values[len(values)*99/100]}
	g.rows = append(g.rows, r)
	g.live(r)
}

func since(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

func (g *gauge) make(ctx context.Context, s client.Spec) (*client.Sandbox, error) {
	sb, err := g.Create(ctx, s)
	if err == nil {
		g.mine = append(g.mine, sb)
	}
	return sb, err
}

func (g *gauge) end(ctx context.Context, sb *client.Sandbox) error {
	g.mine = slices.DeleteFunc(g.mine, func(o *client.Sandbox) bool { return o == sb })
	return sb.Kill(ctx)
}

// clear ends what is left, also after Ctrl-C.
func (g *gauge) clear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for _, sb := range g.mine {
		_ = sb.Kill(ctx) // it ends by itself otherwise
	}
}

func cellOf(ctx context.Context, sb *client.Sandbox, code string) error {
	r, err := sb.Kernel("python").Execute(ctx, client.Cell{Code: code})
	if err == nil && r.ExitReason != arenero.Exited {
		err = arenero.Errorf(arenero.Internal, "run cell", sb.ID(), "%s: %.200s", r.ExitReason, r.Output)
	}
	return err
}

// pool measures creates out of a pool that is full.
func (g *gauge) pool(ctx context.Context, size int) error {
	if size == 0 {
		return nil
	}
	if err := g.SetPool(ctx, arenero.Pool{Image: "python", Min: size, Max: size}); err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = g.SetPool(end, arenero.Pool{Image: "python"}) // it costs memory, nothing else
	}()
	var creates, firsts []float64
	for range g.n {
		if err := g.filled(ctx, size); err != nil {
			return err
		}
		start := time.Now()
		sb, err := g.make(ctx, client.Spec{})
		if err != nil {
			return err
		}
		creates = append(creates, since(start))
		if err := cellOf(ctx, sb, "print(1)"); err != nil {
			return err
		}
		firsts = append(firsts, since(start))
		if sb.Info.From != "pool" {
			return arenero.Errorf(arenero.Internal, "measure pool", sb.ID(), "it was made by %s: %s", sb.Info.From, sb.Info.FromWhy)
		}
		if err := g.end(ctx, sb); err != nil {
			return err
		}
	}
	g.row("create from the pool", "ms", creates)
	g.row("create from the pool, and a first `print(1)` in Python", "ms", firsts)
	return nil
}

func (g *gauge) filled(ctx context.Context, size int) error {
	for {
		all, err := g.Pools(ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Min == size && p.Ready == size && p.Making == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return arenero.Errorf(arenero.Canceled, "fill pool", "", "%w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// empty measures creates of a size that no pool has. By how they were made.
func (g *gauge) empty(ctx context.Context) error {
	took := map[string][]float64{}
	for i := range g.n {
		// Each of a size of its own: a pool learns what is asked for.
		size := 900*arenero.MiB + int64(i)*arenero.MiB
		start := time.Now()
		sb, err := g.make(ctx, client.Spec{Limits: arenero.Limits{Memory: size}})
		if err != nil {
			return err
		}
		if err := cellOf(ctx, sb, "print(1)"); err != nil {
			return err
		}
		took[sb.Info.From] = append(took[sb.Info.From], since(start))
		if err := g.end(ctx, sb); err != nil {
			return err
		}
	}
	for _, from := range []string{"standby", "restore", "boot"} {
		if len(took[from]) > 0 {
			g.row("create by "+from+", and a first `print(1)` in Python", "ms", took[from])
		}
	}
	return nil
}

// uses measures what a sandbox does all day.
func (g *gauge) uses(ctx context.Context) error {
	sb, err := g.make(ctx, client.Spec{})
	if err != nil {
		return err
	}
	var execs, cells, gets, lists []float64
	for range g.n {
		start := time.Now()
		if _, err := sb.Exec(ctx, client.Command{Argv: []string{"/bin/true"}}); err != nil {
			return err
		}
		execs = append(execs, since(start))
	}
	for range 5 * g.n {
		start := time.Now()
		if err := cellOf(ctx, sb, "1+1"); err != nil {
			return err
		}
		cells = append(cells, since(start))
	}
	for range g.n {
		start := time.Now()
		if err := sb.Refresh(ctx); err != nil {
			return err
		}
		gets = append(gets, since(start))
		start = time.Now()
		for _, err := range g.List(ctx) {
			if err != nil {
				return err
			}
		}
		lists = append(lists, since(start))
	}
	g.row("exec `/bin/true`", "ms", execs)
	g.row("execute `1+1` in a live Python kernel", "ms", cells)
	g.row("get a sandbox", "ms", gets)
	g.row("list sandboxes", "ms", lists)
	return g.end(ctx, sb)
}

// sleeps measures falling asleep and waking up.
func (g *gauge) sleeps(ctx context.Context) error {
	sb, err := g.make(ctx, client.Spec{})
	if err != nil {
		return err
	}
	if err := cellOf(ctx, sb, "import numpy; x = numpy.arange(1000)"); err != nil {
		return err
	}
	var pauses, resumes, hibernates, wakes []float64
	for range g.n {
		start := time.Now()
		if err := sb.Pause(ctx); err != nil {
			return err
		}
		pauses = append(pauses, since(start))
		start = time.Now()
		if err := sb.Resume(ctx); err != nil {
			return err
		}
		resumes = append(resumes, since(start))
	}
	for range g.n {
		start := time.Now()
		if err := sb.Hibernate(ctx); err != nil {
			return err
		}
		hibernates = append(hibernates, since(start))
		start = time.Now()
		if err := cellOf(ctx, sb, "x.sum()"); err != nil {
			return err
		}
		wakes = append(wakes, since(start))
	}
	g.row("pause in memory", "ms", pauses)
	g.row("resume from memory", "ms", resumes)
	g.row("hibernate, Python with numpy loaded", "ms", hibernates)
	g.row("wake from disk to the answer of a first cell", "ms", wakes)
	return g.end(ctx, sb)
}

// forks measures copies of a live sandbox.
func (g *gauge) forks(ctx context.Context, count int) error {
	sb, err := g.make(ctx, client.Spec{})
	if err != nil {
		return err
	}
	if err := cellOf(ctx, sb, "x = 1"); err != nil {
		return err
	}
	var ones, more []float64
	for range max(g.n/5, 2) {
		start := time.Now()
		one, err := sb.Fork(ctx, 1, client.Spec{})
		if err != nil {
			return err
		}
		first := since(start)
		ones = append(ones, first)
		start = time.Now()
		many, err := sb.Fork(ctx, count, client.Spec{})
		if err != nil {
			return err
		}
		if count > 1 {
			more = append(more, (since(start)-first)/float64(count-1))
		}
		for _, f := range append(one, many...) {
			if err := f.Kill(ctx); err != nil {
				return err
			}
		}
	}
	g.row("fork of a live sandbox, the first copy", "ms", ones)
	if len(more) > 0 {
		g.row(fmt.Sprintf("each further copy, of %d", count), "ms", more)
	}
	return g.end(ctx, sb)
}

// burst measures many sandboxes at once: each is made, runs a command and ends.
func (g *gauge) burst(ctx context.Context, count int) error {
	start := time.Now()
	errs := make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			sb, err := g.Create(ctx, client.Spec{})
			if err != nil {
				errs[i] = err
				return
			}
			_, err = sb.Exec(ctx, client.Command{Argv: []string{"/bin/true"}})
			errs[i] = errors.Join(err, sb.Kill(ctx))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	g.row(fmt.Sprintf("burst of %d: create, exec, kill", count), "ms", []float64{since(start)})
	return nil
}

// zeros reads as so many zero bytes.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

// files measures a large file on its way in and out.
func (g *gauge) files(ctx context.Context, size int64) error {
	if size == 0 {
		return nil
	}
	sb, err := g.make(ctx, client.Spec{Limits: arenero.Limits{Disk: 2*size + 64*arenero.MiB, CPUs: min(2, float64(runtime.NumCPU()))}})
	if err != nil {
		return err
	}
	start := time.Now()
	if err := sb.WriteFile(ctx, "big", 0o644, &zeros{size}); err != nil {
		return err
	}
	up := float64(size) / 1e6 / time.Since(start).Seconds()
	start = time.Now()
	r, err := sb.ReadFile(ctx, "big")
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(io.Discard, r, make([]byte, 1<<20))
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if n != size {
		return arenero.Errorf(arenero.Internal, "measure files", sb.ID(), "%d bytes came back of %d", n, size)
	}
	g.row(strings.TrimSpace(fmt.Sprintf("file of %d MiB into a sandbox", size/arenero.MiB)), "MB/s", []float64{up})
	g.row(fmt.Sprintf("file of %d MiB out of a sandbox", size/arenero.MiB), "MB/s", []float64{float64(n) / 1e6 / time.Since(start).Seconds()})
	return g.end(ctx, sb)
}
