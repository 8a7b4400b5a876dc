package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// writeTimeout is how long a client may take to accept one piece of a stream.
const writeTimeout = time.Minute

// events is an answer of server-sent events. While nothing happens it sends a
// comment now and then, so that a client that went away is noticed.
type events struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	rc   *http.ResponseController
	ctx  context.Context // of the request
	err  error           // of the first write that failed
	quit chan struct{}
	done chan struct{}
}

func openEvents(a *asker) *events {
	s := &events{w: a.w, rc: http.NewResponseController(a.w), ctx: a.r.Context(), quit: make(chan struct{}), done: make(chan struct{})}
	h := a.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies are not to hold it back
	a.w.WriteHeader(http.StatusOK)
	go s.beat() // joined by close
	return s
}

func (s *events) beat() {
	defer close(s.done)
	t := time.NewTicker(15 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.write([]byte(": still here\n\n"))
		case <-s.quit:
			return
		}
	}
}

// close waits for the beat; the answer ends when the handler returns.
func (s *events) close() {
	close(s.quit)
	<-s.done
}

func (s *events) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have none
	if _, s.err = s.w.Write(p); s.err == nil {
		s.err = s.rc.Flush()
	}
}

// send writes one event; data becomes one line of JSON. It returns false once
// the client is gone.
func (s *events) send(event string, data any) bool {
	b, err := json.Marshal(data)
	if err != nil { // NaN in a chart, say
		b, _ = json.Marshal(problemOf( //nolint:errchkjson // strings and numbers
			arenero.Errorf(arenero.Internal, "encode event", "", "%w", err)))
		event = "problem"
	}
	s.write([]byte("event: " + event + "\ndata: " + string(b) + "\n\n"))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil
}

// sendID is send with a number that a client gives back to go on from there.
func (s *events) sendID(id int64, event string, data any) bool {
	s.write([]byte("id: " + strconv.FormatInt(id, 10) + "\n"))
	return s.send(event, data)
}

type textEvent struct {
	Text string `json:"text"`
}

// endEvent is the last event of a run: how it ended.
type endEvent struct {
	ExitCode       int                `json:"exit_code"`
	ExitReason     arenero.ExitReason `json:"exit_reason"`
	Signal         string             `json:"signal,omitempty"`
	ExecutionCount int                `json:"execution_count,omitempty"`
	Duration       arenero.Millis     `json:"duration_ms"`
}

// endOf gives the end of a run the statuses that a collected result would have.
func endOf(c *host.Collector) endEvent {
	r := c.Result()
	return endEvent{r.ExitCode, r.ExitReason, r.Signal, r.ExecutionCount, r.Duration}
}

// cell sends the events of a cell: stdout, stderr, display, update, clear,
// error, and end. A failure of ours, instead of end, is problem.
func (s *events) cell(x arenero.Execution) {
	var stdout, stderr host.Text
	end := host.NewCollector(0)
	flush := func() bool {
		return s.text("stdout", stdout.Flush()) && s.text("stderr", stderr.Flush())
	}
	for ok := true; ok; {
		e, err := x.Next()
		if err != nil {
			s.send("problem", problemOf(told(s.ctx, err)))
			return
		}
		switch {
		case e.Stdout != "":
			ok = s.text("stdout", stdout.Next([]byte(e.Stdout)))
		case e.Stderr != "":
			ok = s.text("stderr", stderr.Next([]byte(e.Stderr)))
		case e.Display != nil:
			ok = flush() && s.send("display", e.Display)
		case e.Update != nil:
			ok = s.send("update", e.Update)
		case e.Clear != nil:
			ok = s.send("clear", map[string]bool{"wait": e.Clear.Wait})
		case e.Error != nil:
			ok = flush() && s.send("error", e.Error)
		case e.End != nil:
			end.Kernel(e)
			_ = flush() && s.send("end", endOf(end)) // it is over either way
			return
		}
	}
}

// process sends the events of a process: start, stdout, stderr, and end.
func (s *events) process(p arenero.Process) {
	var stdout, stderr host.Text
	end := host.NewCollector(0)
	for ok := s.send("start", map[string]int{"pid": p.PID()}); ok; {
		e, err := p.Next()
		switch {
		case err != nil:
			s.send("problem", problemOf(told(s.ctx, err)))
			return
		case e.Exit != nil:
			end.Process(arenero.ProcessEvent{Exit: e.Exit})
			_ = s.text("stdout", stdout.Flush()) && s.text("stderr", stderr.Flush()) && s.send("end", endOf(end))
			return
		case len(e.Stdout) > 0:
			ok = s.text("stdout", stdout.Next(e.Stdout))
		case len(e.Stderr) > 0:
			ok = s.text("stderr", stderr.Next(e.Stderr))
		}
	}
}

// text sends a piece of a stream; one that holds back a character may be empty.
func (s *events) text(event, t string) bool {
	return t == "" || s.send(event, textEvent{t})
}
