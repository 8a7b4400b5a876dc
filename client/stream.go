package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/arenero/arenero"
)

// An event is one server-sent event.
type event struct {
	name string
	data []byte
}

// maxEvent bounds one event. The server sends pictures of a few MiB.
const maxEvent = 128 * arenero.MiB

// events makes a request with a JSON body and goes through its answer. A stream
// that ends before its last event was cut off.
func (c *Client) events(ctx context.Context, op, path string, in any) iter.Seq2[event, error] {
	return follow(ctx, op, func() (*http.Response, error) { return c.post(ctx, op, path, eventStream, in) })
}

// watch is events of a request without a body.
func (c *Client) watch(ctx context.Context, op, path string) iter.Seq2[event, error] {
	return follow(ctx, op, func() (*http.Response, error) { return c.get(ctx, op, path, eventStream) })
}

const eventStream = "text/event-stream"

func follow(ctx context.Context, op string, open func() (*http.Response, error)) iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		resp, err := open()
		if err != nil {
			yield(event{}, err)
			return
		}
		defer resp.Body.Close()
		r := bufio.NewReaderSize(resp.Body, 64<<10)
		for {
			e, err := readEvent(r)
			switch {
			case errors.Is(err, io.EOF):
				err = arenero.Errorf(arenero.Unavailable, op, "", "the answer was cut off")
			case err != nil:
				err = broken(ctx, op, err)
			case e.name == "problem":
				err = problemEvent(op, e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// readEvent reads one event: lines up to an empty one. io.EOF when the stream
// ends, in the middle of an event too.
func readEvent(r *bufio.Reader) (event, error) {
	var e event
	size := 0
	for {
		line, err := readLine(r, maxEvent-int64(size))
		if err != nil {
			return event{}, err
		}
		size += len(line)
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch {
		case len(line) == 0 && e.name == "" && e.data == nil: // after a comment
		case len(line) == 0:
			return e, nil
		case string(field) == "event":
			e.name = string(value)
		case string(field) == "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			if e.data == nil {
				e.data = []byte{}
			}
		}
	}
}

func readLine(r *bufio.Reader, limit int64) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if int64(len(line)+len(part)) > limit {
			return nil, errors.New("an event is too large")
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}

func problemEvent(op string, e event) error {
	p := refusal{Code: arenero.Internal, Detail: "the server reported a problem"}
	_ = json.Unmarshal(e.data, &p) // what cannot be read stays as above
	return p.error(op)
}

type text struct {
	Text string `json:"text"`
}

type end struct {
	ExitCode       int                `json:"exit_code"`
	ExitReason     arenero.ExitReason `json:"exit_reason"`
	Signal         string             `json:"signal"`
	ExecutionCount int                `json:"execution_count"`
	Duration       arenero.Millis     `json:"duration_ms"`
}

func processEvent(e event) (arenero.ProcessEvent, error) {
	var out arenero.ProcessEvent
	switch e.name {
	case "stdout", "stderr":
		var t text
		if err := decode(e, &t); err != nil {
			return out, err
		}
		if e.name == "stdout" {
			out.Stdout = []byte(t.Text)
		} else {
			out.Stderr = []byte(t.Text)
		}
	case "end":
		var x end
		if err := decode(e, &x); err != nil {
			return out, err
		}
		out.Exit = &arenero.ProcessExit{Code: x.ExitCode, Signal: x.Signal, Reason: x.ExitReason, Duration: time.Duration(x.Duration)}
	}
	return out, nil
}

func kernelEvent(e event) (arenero.KernelEvent, error) {
	var out arenero.KernelEvent
	var t text
	var err error
	switch e.name {
	case "stdout":
		err = decode(e, &t)
		out.Stdout = t.Text
	case "stderr":
		err = decode(e, &t)
		out.Stderr = t.Text
	case "display":
		out.Display = &arenero.Display{}
		err = decode(e, out.Display)
	case "update":
		out.Update = &arenero.Display{}
		err = decode(e, out.Update)
	case "clear":
		var x struct{ Wait bool }
		err = decode(e, &x)
		out.Clear = &arenero.ClearOutput{Wait: x.Wait}
	case "error":
		out.Error = &arenero.RunError{}
		err = decode(e, out.Error)
	case "end":
		var x end
		err = decode(e, &x)
		out.End = &arenero.KernelEnd{
			Reason: x.ExitReason, ExitCode: x.ExitCode, Signal: x.Signal,
			ExecutionCount: x.ExecutionCount, Duration: time.Duration(x.Duration),
		}
	}
	return out, err
}

func decode(e event, v any) error {
	if err := json.Unmarshal(e.data, v); err != nil {
		return arenero.Errorf(arenero.Internal, "read event", "", "%s: %w", e.name, err)
	}
	return nil
}
