package main

import (
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A transfer shows how far a copy is, on a terminal, and nothing elsewhere.
type transfer struct {
	pool *mpb.Progress // nil without a terminal
	bar  *mpb.Bar
}

func newTransfer(m *Main, name string) *transfer {
	t := &transfer{}
	if !isTerminal(m.Stderr) {
		return t
	}
	t.pool = mpb.New(mpb.WithOutput(m.Stderr), mpb.WithWidth(40))
	t.bar = t.pool.AddBar(0,
		mpb.PrependDecorators(decor.Name(clip(printable(name), 40), decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Elapsed(decor.ET_STYLE_GO, decor.WC{W: 6})),
	)
	return t
}

// report is a client.Progress. What is of no known size is always nearly done.
func (t *transfer) report(done, total int64) {
	if t.bar != nil {
		t.bar.SetTotal(max(total, done), false)
		t.bar.SetCurrent(done)
	}
}

// done leaves the bar where it is.
func (t *transfer) done() {
	if t.bar != nil {
		t.bar.SetTotal(-1, true)
		t.pool.Wait()
	}
}

// through counts what is read.
func (t *transfer) through(r io.Reader) io.Reader { return &counted{r: r, t: t} }

type counted struct {
	r io.Reader
	t *transfer
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.t.report(c.n, -1)
	return n, err
}
