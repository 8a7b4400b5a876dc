package host

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/arenero/arenero"
)

// probes keeps what the engines can do: asking costs, and the answer holds until
// the machine is changed.
type probes struct {
	mu   sync.Mutex
	good map[string]arenero.Capabilities
}

// of asks an engine once; an answer with defects is asked for again, so that
// mending needs no restart.
func (p *probes) of(ctx context.Context, e arenero.Engine) (arenero.Capabilities, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.good[e.Name()]; ok {
		return c, nil
	}
	c, err := e.Probe(ctx)
	if err != nil {
		return c, err
	}
	if len(c.Missing) == 0 {
		if p.good == nil {
			p.good = map[string]arenero.Capabilities{}
		}
		p.good[e.Name()] = c
	}
	return c, nil
}

// memory returns the machine's memory and what is free of it, in bytes; zeros
// when it is not known.
func memory() (total, free int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = n * arenero.KiB
		case "MemAvailable":
			free = n * arenero.KiB
		}
	}
	return total, free
}
