package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// limits is how limits travel: the root type leaves the time out.
type limits struct {
	CPUs      float64 `json:"cpus,omitempty"`
	Memory    int64   `json:"memory,omitempty"`
	Processes int     `json:"processes,omitempty"`
	Disk      int64   `json:"disk,omitempty"`
	OpenFiles int     `json:"open_files,omitempty"`
	Output    int64   `json:"output,omitempty"`
	Timeout   float64 `json:"timeout,omitempty"`
}

func limitsOf(l arenero.Limits) limits {
	return limits{l.CPUs, l.Memory, l.Processes, l.Disk, l.OpenFiles, l.Output, l.Timeout.Seconds()}
}

// maxAnswer bounds an answer that is read whole. A result is smaller.
const maxAnswer = 256 * arenero.MiB

// tries is how often a call with an idempotency key is made when the connection
// fails, and patience the pause before the second; each further one is twice as
// long.
const (
	tries    = 4
	patience = 100 * time.Millisecond
)

// A request is one call of the server.
type request struct {
	op, method, path string
	takes            string // "" is JSON
	gives            string // "" is JSON, if there is a body
	body             io.Reader
	header           http.Header
	length           int64 // of body, when it is known; 0 is not
}

// call makes a request with a JSON body and reads a JSON answer into out, unless
// it is nil.
func (c *Client) call(ctx context.Context, op, method, path string, in, out any) error {
	return c.callOnce(ctx, op, method, path, "", in, out)
}

// callOnce is call under an idempotency key: what was asked for happens once, and
// the call is made again when the connection fails. "" is no key, and one try.
func (c *Client) callOnce(ctx context.Context, op, method, path, key string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return arenero.Errorf(arenero.Invalid, op, "", "encode request: %w", err)
		}
	}
	var err error
	for try := range tries {
		if try > 0 && !pause(ctx, patience<<(try-1)) {
			return err
		}
		r := request{op: op, method: method, path: path}
		if body != nil {
			r.body = bytes.NewReader(body)
		}
		if key != "" {
			r.header = http.Header{"Idempotency-Key": {key}}
		}
		var again bool
		if again, err = c.callBack(ctx, r, out); err == nil || !again || key == "" {
			return err
		}
	}
	return err
}

// callBack makes one try; again says that the connection failed.
func (c *Client) callBack(ctx context.Context, r request, out any) (again bool, err error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return errors.Is(err, errLine) && ctx.Err() == nil, err
	}
	defer resp.Body.Close()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return false, nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return ctx.Err() == nil, broken(ctx, r.op, err)
	}
	if int64(len(b)) > maxAnswer {
		return false, arenero.Errorf(arenero.TooLarge, r.op, "", "the answer is over %d MiB", maxAnswer/arenero.MiB)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return false, arenero.Errorf(arenero.Unavailable, r.op, "", "read answer: %w", err).WithHint(hintAddress)
	}
	return false, nil
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newKey is an idempotency key that nobody used.
func newKey() string { return rand.Text() }

// get asks for something that is read as it comes; the caller closes the body.
func (c *Client) get(ctx context.Context, op, path, takes string) (*http.Response, error) {
	return c.send(ctx, request{op: op, method: http.MethodGet, path: path, takes: takes})
}

// post sends JSON and returns an answer that is read as it comes.
func (c *Client) post(ctx context.Context, op, path, takes string, in any) (*http.Response, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "encode request: %w", err)
	}
	return c.send(ctx, request{op: op, method: http.MethodPost, path: path, takes: takes, body: bytes.NewReader(b)})
}

// send makes a request and returns the answer if it is a good one; the caller
// closes its body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.base()+r.path, r.body)
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, r.op, "", "%w", err)
	}
	maps.Copy(req.Header, r.header)
	if r.length > 0 {
		req.ContentLength = r.length
	}
	req.Header.Set("Accept", cmp.Or(r.takes, "application/json"))
	if r.body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.gives, "application/json"))
	}
	c.sign(req.Header)
	resp, err := c.http().Do(req)
	if err != nil {
		return nil, broken(ctx, r.op, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, problem(r.op, resp)
	}
	return resp, nil
}

func (c *Client) base() string { return strings.TrimRight(c.URL, "/") }

func (c *Client) sign(h http.Header) {
	if c.Key != "" {
		h.Set("Authorization", "Bearer "+c.Key)
	}
}

// http is the client to use. The default one does not follow redirects: a key is
// for the server it was made by.
func (c *Client) http() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

const hintAddress = "is this the address of an arenero server?"

// A refusal is problem+json of the server, and the data of an event of that name.
type refusal struct {
	Code   arenero.Code `json:"code"`
	Detail string       `json:"detail"`
	Hint   string       `json:"hint"`
}

func (p refusal) error(op string) *arenero.Error {
	return &arenero.Error{Code: p.Code, Op: op, Err: errors.New(p.Detail), Hint: p.Hint}
}

// problem is the error that a bad answer stands for.
func problem(op string, resp *http.Response) error {
	var p refusal
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // an odd one is no problem of ours
	err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&p)
	if kind != "application/problem+json" || err != nil || p.Code == "" {
		return arenero.Errorf(arenero.Unavailable, op, "", "the server answered %s", resp.Status).WithHint(hintAddress)
	}
	e := p.error(op)
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s <= 1<<20 {
		e.Wait = time.Duration(s) * time.Second
	}
	return e
}

// errLine is in the chain of errors of a connection, not of an answer.
var errLine = errors.New("no answer")

type lineError struct{ error }

func (e lineError) Unwrap() error        { return e.error }
func (e lineError) Is(target error) bool { return target == errLine }

// broken is the error of a request that got no answer, or no whole one.
func broken(ctx context.Context, op string, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return arenero.Errorf(arenero.Timeout, op, "", "%w", err)
	case ctx.Err() != nil:
		return arenero.Errorf(arenero.Canceled, op, "", "%w", err)
	}
	// The caller's reader of a body, say, has a code of its own.
	if code := arenero.CodeOf(err); code != arenero.Internal {
		return arenero.Errorf(code, op, "", "%w", err)
	}
	return arenero.Errorf(arenero.Unavailable, op, "", "%w", lineError{err}).
		WithHint("is the server running? start one with `arenero serve`")
}

func escape(s string) string { return url.PathEscape(s) }
