package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/client"
)

type topCmd struct {
	remote

	Interval time.Duration `help:"How often to look (${default})." type:"seconds" default:"2s" placeholder:"TIME"`
	Once     bool          `help:"Look once and print a table; so it is without a terminal, too."`
}

// Help is shown below the flags.
func (*topCmd) Help() string {
	return `Shows what the sandboxes of a server use, the busiest first: a table that is drawn anew until q or Ctrl-C. With --json, a line
of JSON each time; with --once as well, one document.`
}

// A load is what one sandbox uses, in the time since the look before.
type load struct {
	ID      string        `json:"id"`
	State   arenero.State `json:"state"`
	Image   string        `json:"image"`
	CPU     float64       `json:"cpu_percent"` // of one processor
	Memory  int64         `json:"memory"`
	Limit   int64         `json:"memory_limit"`
	Tasks   int           `json:"tasks"`
	Created time.Time     `json:"created"`
}

// A lookout measures sandboxes again and again.
type lookout struct {
	*client.Client

	at   time.Time
	cpus map[string]float64 // seconds used, at the time of the last look
}

// Run shows the table.
func (v *topCmd) Run(ctx context.Context, m *Main, c *cli) error {
	ctx, stop := until(ctx)
	defer stop()
	l := &lookout{Client: v.client(c)}
	if _, err := l.look(ctx); err != nil { // the first look: what a second one is compared with
		return err
	}
	switch screen := isTerminal(m.Stdin) && isTerminal(m.Stdout); {
	case v.Once, !screen && !v.JSON:
		return v.once(ctx, m, l)
	case v.JSON:
		return v.lines(ctx, m, l)
	}
	return v.live(ctx, m, l)
}

// look measures all that have not ended. Those that end meanwhile are left out.
func (l *lookout) look(ctx context.Context) ([]load, error) {
	var all []load
	for sb, err := range l.List(ctx) {
		if err != nil {
			return nil, err
		}
		i := sb.Info
		all = append(all, load{ID: i.ID, State: i.State, Image: i.Image, Limit: i.Limits.Memory, Created: i.Created})
	}
	cpus := make([]float64, len(all))
	var work sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i := range all {
		work.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			u, err := l.At(all[i].ID).Usage(ctx)
			if err != nil {
				cpus[i] = -1 // not there to be measured
				return
			}
			cpus[i], all[i].Memory, all[i].Tasks = u.CPU, u.Memory, u.Tasks
		})
	}
	work.Wait()
	now, before := time.Now(), l.cpus
	passed := now.Sub(l.at).Seconds()
	l.at, l.cpus = now, make(map[string]float64, len(all))
	for i := range all {
		if cpus[i] < 0 {
			continue
		}
		l.cpus[all[i].ID] = cpus[i]
		// One that woke meanwhile counts from zero again.
		if was, known := before[all[i].ID]; known && cpus[i] >= was && passed > 0 {
			all[i].CPU = 100 * (cpus[i] - was) / passed
		}
	}
	slices.SortStableFunc(all, func(a, b load) int {
		switch {
		case a.CPU != b.CPU:
			return map[bool]int{true: -1, false: 1}[a.CPU > b.CPU]
		case a.Memory != b.Memory:
			return map[bool]int{true: -1, false: 1}[a.Memory > b.Memory]
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

// rest waits for the next look; false when it is over.
func (v *topCmd) rest(ctx context.Context) bool {
	t := time.NewTimer(max(v.Interval, 100*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (v *topCmd) once(ctx context.Context, m *Main, l *lookout) error {
	if !v.rest(ctx) {
		return status(statusCanceled)
	}
	all, err := l.look(ctx)
	if err != nil {
		return err
	}
	return v.show(m, slices.Concat([]load{}, all), func(w io.Writer) { loads(w, all) })
}

func (v *topCmd) lines(ctx context.Context, m *Main, l *lookout) error {
	for v.rest(ctx) {
		all, err := l.look(ctx)
		if err == nil {
			err = json.NewEncoder(m.Stdout).Encode(slices.Concat([]load{}, all))
		}
		if err != nil {
			return unlessStopped(ctx, err)
		}
	}
	return nil
}

func loads(w io.Writer, all []load) {
	rows := make([][]string, len(all))
	for i, a := range all {
		rows[i] = []string{
			a.ID, string(a.State), fmt.Sprintf("%.1f", a.CPU), mib(a.Memory), mib(a.Limit), strconv.Itoa(a.Tasks), age(a.Created), a.Image,
		}
	}
	table(w, "ID STATE CPU% MEMORY LIMIT TASKS AGE IMAGE", rows)
}

// frame is one picture: lines of at most cols runes, at most rows of them.
func frame(all []load, note string, cols, rows int) string {
	var memory int64
	cpu := 0.0
	for _, a := range all {
		memory += a.Memory
		cpu += a.CPU
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %d sandboxes, %.1f %% CPU, %s   q quits\n", time.Now().Format(time.TimeOnly), len(all), cpu, mib(memory))
	fmt.Fprintln(&b, note)
	loads(&b, all)
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) > rows && rows > 0 {
		lines = lines[:rows]
	}
	for i, line := range lines {
		if r := []rune(line); len(r) > cols {
			lines[i] = string(r[:cols])
		}
	}
	return strings.Join(lines, "\n")
}

// What a terminal is told. It gets its own screen, and the old one back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	fromTheTop  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// live draws until a key or a signal ends it, and gives the terminal back as it
// was, whatever happens.
func (v *topCmd) live(ctx context.Context, m *Main, l *lookout) (err error) {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	old, err := term.MakeRaw(int(m.Stdin.Fd()))
	if err != nil {
		return arenero.Errorf(arenero.Unavailable, "open screen", "", "%w", err)
	}
	defer func() {
		_, werr := io.WriteString(m.Stdout, leaveScreen)
		if back := errors.Join(werr, term.Restore(int(m.Stdin.Fd()), old)); back != nil && err == nil {
			err = arenero.Errorf(arenero.Unavailable, "close screen", "", "%w", back)
		}
	}()
	if _, err := io.WriteString(m.Stdout, enterScreen); err != nil {
		return arenero.Errorf(arenero.Unavailable, "open screen", "", "%w", err)
	}
	go keys(m.Stdin, quit) // ends with the program: a read of a terminal can not be joined
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	defer signal.Stop(winch)

	var all []load
	note := ""
	draw := func() error {
		w := windowOf(m.Stdout)
		text := strings.ReplaceAll(frame(all, note, w.Cols, w.Rows), "\n", clearLine+"\r\n")
		_, err := io.WriteString(m.Stdout, fromTheTop+text+clearLine+clearBelow)
		return err
	}
	tick := time.NewTicker(max(v.Interval, 100*time.Millisecond))
	defer tick.Stop()
	for look := true; ; {
		if look {
			seen, err := l.look(ctx)
			note = ""
			if err != nil { // it may be starting again: what was seen last stays
				note = printable(err.Error())
			} else {
				all = seen
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := draw(); err != nil {
			return arenero.Errorf(arenero.Unavailable, "draw screen", "", "%w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-winch:
			look = false
		case <-tick.C:
			look = true
		}
	}
}

// keys waits for one that ends the table. A raw terminal makes no signals.
func keys(r io.Reader, quit func()) {
	b := make([]byte, 16)
	for {
		n, err := r.Read(b)
		if err != nil || bytes.ContainsAny(b[:n], "qQ\x03\x04") {
			quit()
			return
		}
	}
}
