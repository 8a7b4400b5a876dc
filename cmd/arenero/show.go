package main

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"github.com/arenero/arenero"
)

// A screen shows what a run prints, as it comes. With quiet set it only saves
// pictures: the result follows as JSON.
type screen struct {
	stdout, stderr io.Writer // cleaned when they are terminals
	raw            io.Writer // the terminal itself, for pictures; nil if stdout is none
	colours        bool      // stderr shows colours
	paint          painter   // nil when the terminal shows no pictures
	out            *outDir   // nil without --out
	quiet          bool
	hinted         bool
	flushers       []func() error
}

func newScreen(m *Main, raw bool, out *outDir) *screen {
	s := &screen{stdout: m.Stdout, stderr: m.Stderr, out: out}
	if isTerminal(m.Stdout) {
		s.raw, s.paint = m.Stdout, painterOf(getenv)
		if !raw {
			c := &cleaner{w: m.Stdout}
			s.stdout, s.flushers = c, append(s.flushers, c.flush)
		}
	}
	if isTerminal(m.Stderr) {
		s.colours = getenv("NO_COLOR") == ""
		if !raw {
			c := &cleaner{w: m.Stderr}
			s.stderr, s.flushers = c, append(s.flushers, c.flush)
		}
	}
	return s
}

func (s *screen) close() error {
	for _, f := range s.flushers {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// event shows one event of a kernel.
func (s *screen) event(e arenero.KernelEvent) error {
	var err error
	switch {
	case e.Stdout != "":
		err = s.text(s.stdout, e.Stdout)
	case e.Stderr != "":
		err = s.text(s.stderr, e.Stderr)
	case e.Display != nil:
		err = s.display(e.Display)
	case e.Update != nil:
		err = s.display(e.Update)
	case e.Error != nil:
		err = s.text(s.stderr, s.traceback(e.Error))
	}
	return err
}

// process shows one event of a command.
func (s *screen) process(e arenero.ProcessEvent) error {
	if s.quiet {
		return nil
	}
	if len(e.Stdout) > 0 {
		if _, err := s.stdout.Write(e.Stdout); err != nil {
			return err
		}
	}
	if len(e.Stderr) > 0 {
		if _, err := s.stderr.Write(e.Stderr); err != nil {
			return err
		}
	}
	return nil
}

func (s *screen) text(w io.Writer, t string) error {
	if s.quiet {
		return nil
	}
	_, err := io.WriteString(w, t)
	return err
}

func (s *screen) traceback(e *arenero.RunError) string {
	t := strings.Join(e.Traceback, "\n")
	if t == "" {
		t = e.Name + ": " + e.Value
	}
	if !s.colours {
		t = stripColours(t)
	}
	return strings.TrimRight(t, "\n") + "\n"
}

// pictures are the types that are files rather than text, the best first.
func pictures() []struct{ mime, kind string } {
	return []struct{ mime, kind string }{
		{"image/png", "png"}, {"image/jpeg", "jpg"}, {"image/gif", "gif"}, {"image/webp", "webp"},
		{"image/svg+xml", "svg"}, {"application/pdf", "pdf"},
	}
}

// texts are the types that read well as they are, the best first.
func texts() []string {
	return []string{"text/plain", "text/markdown", "text/latex", "application/json", "application/javascript", "text/html"}
}

func (s *screen) display(d *arenero.Display) error {
	for _, p := range pictures() {
		body, ok := d.MIME[p.mime]
		if !ok {
			continue
		}
		data := []byte(body)
		if p.kind != "svg" {
			raw, err := base64.StdEncoding.DecodeString(strings.Map(dropSpace, body))
			if err != nil {
				return s.text(s.stderr, fmt.Sprintf("arenero: a picture of type %s is not base64 and was dropped\n", p.mime))
			}
			data = raw
		}
		return s.picture(p.kind, data, d.Chart)
	}
	for _, mime := range texts() {
		if body, ok := d.MIME[mime]; ok {
			return s.text(s.stdout, strings.TrimRight(body, "\n")+"\n")
		}
	}
	for mime, body := range d.MIME {
		return s.text(s.stdout, fmt.Sprintf("[%s, %d bytes: --json shows it]\n", mime, len(body)))
	}
	return nil
}

func dropSpace(r rune) rune {
	if r == '\n' || r == '\r' || r == ' ' {
		return -1
	}
	return r
}

func (s *screen) picture(kind string, data []byte, chart *arenero.Chart) error {
	what := "picture"
	if chart != nil && chart.Type != "" && chart.Type != "unknown" {
		what = strings.ReplaceAll(chart.Type, "_", " ") + " chart"
		if chart.Title != "" {
			what += fmt.Sprintf(" %q", chart.Title)
		}
	}
	if s.paint != nil && kind == "png" && !s.quiet {
		if err := s.paint(s.raw, cmp.Or(what, "picture")+".png", data); err != nil {
			return err
		}
	}
	if s.out == nil {
		hint := ""
		if !s.hinted {
			s.hinted, hint = true, ": --out DIR keeps it"
		}
		return s.text(s.stdout, fmt.Sprintf("[%s, %s, %d KiB%s]\n", what, kind, (len(data)+1023)/1024, hint))
	}
	path, err := s.out.picture(kind, data)
	if err != nil {
		return err
	}
	return s.text(s.stdout, fmt.Sprintf("[%s: %s]\n", what, path))
}
