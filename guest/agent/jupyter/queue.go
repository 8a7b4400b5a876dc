package jupyter

import "sync"

// maxQueue is how many bytes of messages wait for a slow reader of a cell before
// the kernel has to wait too.
const maxQueue = 4 << 20

// A queue takes messages from the sockets' readers to the goroutine of the cell.
type queue struct {
	ready chan struct{} // holds a token when there is something to take

	mu    sync.Mutex
	space sync.Cond
	items []message
	bytes int
	free  bool
}

func newQueue() *queue {
	q := &queue{ready: make(chan struct{}, 1)}
	q.space.L = &q.mu
	return q
}

// push blocks while the queue is full. A message larger than the queue passes
// when it is empty.
func (q *queue) push(m message) {
	q.mu.Lock()
	for q.bytes >= maxQueue && !q.free {
		q.space.Wait()
	}
	if q.free {
		q.mu.Unlock()
		return
	}
	q.items = append(q.items, m)
	q.bytes += len(m.content) + 256
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns all that waits.
func (q *queue) take() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.bytes = nil, 0
	q.space.Broadcast()
	return items
}

// open lets everybody through: from now on messages are thrown away.
func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free = true
	q.space.Broadcast()
}
