package host

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/arenero/arenero"
)

// Bounds of the rich results of one run that are kept; text has the sandbox's
// Limits.Output.
const (
	maxResults     = 1000
	maxResultBytes = 64 * arenero.MiB
)

// A Collector turns the events of one run into a [arenero.Result], in bounded
// memory: of each stream the last bytes are kept and the rest is counted.
type Collector struct {
	stdout, stderr, output ring
	results                []arenero.Display
	resultBytes            int64
	droppedResults         int
	clearNext              bool
	raised                 *arenero.RunError
	end                    arenero.Result // its fields that tell how the run ended
}

// NewCollector makes a collector that keeps so many bytes of each of stdout and
// stderr.
func NewCollector(keep int64) *Collector {
	c := &Collector{results: []arenero.Display{}}
	c.stdout.max, c.stderr.max = int(keep), int(keep)
	c.output.max = 2 * int(keep) // what stdout and stderr still hold is in it
	return c
}

// Process takes one event of a process.
func (c *Collector) Process(e arenero.ProcessEvent) {
	c.stdout.dropped += e.Dropped
	c.write(&c.stdout, e.Stdout)
	c.write(&c.stderr, e.Stderr)
	if x := e.Exit; x != nil {
		c.end.ExitCode, c.end.Signal, c.end.ExitReason = x.Code, x.Signal, x.Reason
		c.end.Duration = arenero.Millis(x.Duration)
	}
}

// Kernel takes one event of a cell.
func (c *Collector) Kernel(e arenero.KernelEvent) {
	switch {
	case e.Stdout != "":
		c.forgetIfAsked()
		c.write(&c.stdout, []byte(e.Stdout))
	case e.Stderr != "":
		c.forgetIfAsked()
		c.write(&c.stderr, []byte(e.Stderr))
	case e.Display != nil:
		c.forgetIfAsked()
		c.show(*e.Display)
	case e.Update != nil:
		c.update(*e.Update)
	case e.Clear != nil:
		c.clearNext = true
		if !e.Clear.Wait {
			c.forgetIfAsked()
		}
	case e.Error != nil:
		c.raised = e.Error
		text := stripANSI(strings.Join(e.Error.Traceback, "\n"))
		if text == "" {
			text = e.Error.Name + ": " + e.Error.Value
		}
		c.line(text)
	case e.End != nil:
		c.end.ExitCode, c.end.Signal, c.end.ExitReason = e.End.ExitCode, e.End.Signal, e.End.Reason
		c.end.ExecutionCount, c.end.Duration = e.End.ExecutionCount, arenero.Millis(e.End.Duration)
	}
}

// Result is what was collected so far. The collector may go on after it.
func (c *Collector) Result() arenero.Result {
	r := c.end
	r.Stdout, r.Stderr = c.stdout.text(), c.stderr.text()
	r.Output = c.output.text()
	if r.Output == r.Stdout {
		r.Output = r.Stdout // one copy of the bytes instead of two
	}
	r.Truncated = arenero.Truncated{Stdout: c.stdout.dropped, Stderr: c.stderr.dropped, Results: c.droppedResults}
	r.Results = c.results
	r.Error = c.raised
	switch { // statuses that a shell would give
	case r.ExitReason == arenero.TimedOut: // as timeout(1): Signal tells what it took
		r.ExitCode = 124
	case r.ExitReason == arenero.OutOfMemory && r.ExitCode == 0:
		r.ExitCode = 137
	case r.ExitReason != arenero.Exited && r.ExitCode == 0:
		r.ExitCode = 1
	}
	return r
}

func (c *Collector) write(to *ring, p []byte) {
	if len(p) == 0 {
		return
	}
	to.write(p)
	c.output.write(p)
}

// line adds a text of its own to the output, on lines of its own.
func (c *Collector) line(text string) {
	if last, ok := c.output.last(); ok && last != '\n' {
		c.output.write([]byte{'\n'})
	}
	c.output.write([]byte(text))
	if !strings.HasSuffix(text, "\n") {
		c.output.write([]byte{'\n'})
	}
}

// forgetIfAsked does what an earlier clear_output asked for. The streams are a
// record and stay; what was displayed goes.
func (c *Collector) forgetIfAsked() {
	if c.clearNext {
		c.clearNext = false
		c.results, c.resultBytes = []arenero.Display{}, 0
	}
}

func (c *Collector) show(d arenero.Display) {
	if text := d.MIME["text/plain"]; text != "" {
		c.line(text)
	}
	size := sizeOf(d)
	if len(c.results) >= maxResults || c.resultBytes+size > maxResultBytes {
		c.droppedResults++
		return
	}
	c.results, c.resultBytes = append(c.results, d), c.resultBytes+size
}

// update replaces every result of the same display id, as a notebook does.
func (c *Collector) update(d arenero.Display) {
	if d.ID == "" {
		return
	}
	for i, old := range c.results {
		grow := sizeOf(d) - sizeOf(old)
		if old.ID != d.ID {
			continue
		}
		if c.resultBytes+grow > maxResultBytes {
			c.droppedResults++
			continue
		}
		d.IsMain = old.IsMain
		c.results[i], c.resultBytes = d, c.resultBytes+grow
	}
}

func sizeOf(d arenero.Display) int64 {
	n := int64(256)
	for k, v := range d.MIME {
		n += int64(len(k) + len(v))
	}
	if d.Chart != nil {
		for _, s := range d.Chart.Series {
			n += int64(64 + 48*len(s.Points) + 96*len(s.Bars) + 128*len(s.Boxes))
		}
		n += int64(len(d.Chart.Charts)) * 1024
	}
	return n
}

// CollectExecution reads a cell to its end. each, if not nil, sees every event
// first; its error ends the run. The caller closes x.
func CollectExecution(x arenero.Execution, c *Collector, each func(arenero.KernelEvent) error) error {
	for {
		e, err := x.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if each != nil {
			if err := each(e); err != nil {
				return err
			}
		}
		c.Kernel(e)
	}
}

// CollectProcess reads a process to its end; see [CollectExecution].
func CollectProcess(p arenero.Process, c *Collector, each func(arenero.ProcessEvent) error) error {
	for {
		e, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if each != nil {
			if err := each(e); err != nil {
				return err
			}
		}
		c.Process(e)
	}
}

// A ring keeps the last max bytes written to it. It grows as it is needed.
type ring struct {
	max     int
	buf     []byte
	start   int // of the oldest byte, once buf is full
	dropped int64
}

func (r *ring) write(p []byte) {
	if over := len(p) - r.max; over > 0 {
		r.dropped += int64(over + len(r.buf))
		r.buf, r.start = append(r.buf[:0], p[over:]...), 0
		return
	}
	if room := r.max - len(r.buf); room > 0 {
		n := min(room, len(p))
		r.buf, p = append(r.buf, p[:n]...), p[n:]
	}
	r.dropped += int64(len(p))
	for len(p) > 0 {
		n := copy(r.buf[r.start:], p)
		r.start, p = (r.start+n)%len(r.buf), p[n:]
	}
}

func (r *ring) last() (byte, bool) {
	if len(r.buf) == 0 {
		return 0, false
	}
	return r.buf[(r.start+len(r.buf)-1)%len(r.buf)], true
}

// text returns what is kept as valid UTF-8. A character that was cut where the
// ring begins is left out.
func (r *ring) text() string {
	b := r.buf
	if r.start > 0 {
		b = append(append(make([]byte, 0, len(r.buf)), r.buf[r.start:]...), r.buf[:r.start]...)
	}
	if r.dropped > 0 {
		for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
			b = b[1:]
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

var ansi = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[@-Z\\\\-_])")

// stripANSI removes colours and the like.
func stripANSI(s string) string { return ansi.ReplaceAllString(s, "") }

// A Text cuts a stream of bytes into pieces of valid UTF-8: a character that a
// piece ends in the middle of waits for the next one.
type Text struct{ rest []byte }

// Next returns what can be said after p. It may be empty.
func (t *Text) Next(p []byte) string {
	if len(t.rest) > 0 {
		p = append(t.rest, p...)
		t.rest = nil
	}
	end := len(p)
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if c := p[len(p)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(p[len(p)-i:]) {
				end = len(p) - i
			}
			break
		}
	}
	if end < len(p) {
		t.rest = append([]byte(nil), p[end:]...)
	}
	return strings.ToValidUTF8(string(p[:end]), "\uFFFD")
}

// Flush returns what is left at the end of the stream.
func (t *Text) Flush() string {
	rest := t.rest
	t.rest = nil
	return strings.ToValidUTF8(string(rest), "\uFFFD")
}
