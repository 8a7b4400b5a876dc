package agent

import (
	"sync"

	"github.com/arenero/arenero/guest/wire"
)

const (
	stdout = 0
	stderr = 1

	piece      = 64 << 10  // bytes of one read and of one message
	maxUnread  = 512 << 10 // bytes a reader may lag behind before the process waits
	tailLength = 4 << 10   // of what is looked at for the reason of an exit
)

// output is what a process wrote: the pieces that somebody still has to read, and
// the last of each stream for those who come later. A reader that is slow makes
// the process wait; without readers the oldest pieces go.
type output struct {
	mu      sync.Mutex
	changed *sync.Cond // pieces came, were read or ended
	chunks  []*chunk   // oldest first
	next    int64      // number of the next chunk
	keep    int64      // bytes of each stream to keep
	held    [2]int64   // bytes in chunks, by stream
	wrote   int64      // bytes in all
	tails   [2][]byte
	readers map[*tap]struct{}
	exit    *wire.ProcessExit // set at the end
}

type chunk struct {
	number int64
	stream int
	data   []byte
}

// A tap is one reader of an output.
type tap struct {
	o       *output
	number  int64 // of the chunk it reads
	off     int   // how much of that it has
	given   int   // how much of that the caller holds
	unread  int64
	dropped int64 // bytes that were gone before it came
	closed  bool
}

func newOutput(keep int64) *output {
	o := &output{keep: keep, readers: map[*tap]struct{}{}}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// write takes a piece, waiting for slow readers first.
func (o *output) write(stream int, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.lagging() {
		o.changed.Wait()
	}
	n := int64(len(p))
	o.wrote += n
	o.held[stream] += n
	for t := range o.readers {
		t.unread += n
	}
	o.tails[stream] = append(o.tails[stream], p[max(0, len(p)-tailLength):]...)
	if extra := len(o.tails[stream]) - tailLength; extra > tailLength {
		o.tails[stream] = append(o.tails[stream][:0], o.tails[stream][extra:]...)
	}
	if last := len(o.chunks) - 1; last >= 0 {
		c := o.chunks[last]
		if c.stream == stream && len(c.data)+len(p) <= cap(c.data) {
			c.data = append(c.data, p...)
			p = nil
		}
	}
	if len(p) > 0 {
		size := 4 << 10
		for size < len(p) {
			size *= 4
		}
		o.chunks = append(o.chunks, &chunk{o.next, stream, append(make([]byte, 0, size), p...)})
		o.next++
	}
	o.trim()
	o.changed.Broadcast()
}

func (o *output) lagging() bool {
	for t := range o.readers {
		if t.unread >= maxUnread {
			return true
		}
	}
	return false
}

// trim lets go of what all readers have and nobody to come needs.
func (o *output) trim() {
	first := o.next
	for t := range o.readers {
		first = min(first, t.number)
	}
	kept := o.chunks[:0]
	var whole [2]bool // no more of this stream may go: what goes is its oldest
	for i, c := range o.chunks {
		if c.number >= first || whole[stdout] && whole[stderr] {
			kept = append(kept, o.chunks[i:]...)
			break
		}
		rest := o.held[c.stream] - int64(len(c.data))
		if whole[c.stream] || rest < o.keep {
			whole[c.stream] = true
			kept = append(kept, c)
			continue
		}
		o.held[c.stream] = rest
	}
	clear(o.chunks[len(kept):])
	o.chunks = kept
}

// end says that nothing more comes.
func (o *output) end(exit *wire.ProcessExit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exit = exit
	o.changed.Broadcast()
}

// tail is the last of a stream.
func (o *output) tail(stream int) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]byte(nil), o.tails[stream]...)
}

// tap makes a reader that begins with what is kept.
func (o *output) tap() *tap {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &tap{o: o, number: o.next, unread: o.held[0] + o.held[1]}
	if len(o.chunks) > 0 {
		t.number = o.chunks[0].number
	}
	t.dropped = o.wrote - t.unread
	o.readers[t] = struct{}{}
	return t
}

// next returns the next piece, valid until the next call, or the exit at the end.
// Both are nil once the tap is closed.
func (t *tap) next() (stream int, data []byte, exit *wire.ProcessExit) {
	o := t.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.given > 0 {
		t.off += t.given
		t.unread -= int64(t.given)
		t.given = 0
		o.trim()
		o.changed.Broadcast()
	}
	for {
		if t.closed {
			return 0, nil, nil
		}
		if c := t.chunk(); c != nil {
			data = c.data[t.off:len(c.data):len(c.data)]
			t.given = len(data)
			return c.stream, data, nil
		}
		if o.exit != nil {
			return 0, nil, o.exit
		}
		o.changed.Wait()
	}
}

// chunk is the first one with something unread.
func (t *tap) chunk() *chunk {
	for _, c := range t.o.chunks {
		switch {
		case c.number < t.number:
		case c.number == t.number && t.off == len(c.data):
		default:
			if c.number > t.number {
				t.number, t.off = c.number, 0
			}
			return c
		}
	}
	return nil
}

// close ends a next that blocks, and lets the process go on.
func (t *tap) close() {
	t.o.mu.Lock()
	defer t.o.mu.Unlock()
	t.closed = true
	delete(t.o.readers, t)
	t.o.trim()
	t.o.changed.Broadcast()
}
