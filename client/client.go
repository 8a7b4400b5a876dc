// Package client speaks to an arenero server over HTTP.
//
//	c := client.New("http://127.0.0.1:8000", key)
//	r, err := c.Execute(ctx, client.Run{Code: "print(6*7)"})
//	fmt.Print(r.Output) // 42
//
// State is kept in a [Sandbox] until it is killed:
//
//	sb, err := c.Create(ctx, client.Spec{})
//	defer sb.Kill(ctx)
//	_, err = sb.Kernel("python").Execute(ctx, client.Cell{Code: "x = 6"})
//	r, err = sb.Kernel("python").Execute(ctx, client.Cell{Code: "x * 7"})
//
// What code prints and how it ends is an [arenero.Result]; that it fails is no
// error. Errors are *arenero.Error with the server's code and hint, so that
// arenero.CodeOf(err) == arenero.NotFound holds here as it does in the server.
// Canceling a context ends the run it belongs to.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// Client is a server and a key for it. It holds no state; its methods may be
// called from any number of goroutines.
type Client struct {
	URL  string       // "http://127.0.0.1:8000"
	Key  string       //
	HTTP *http.Client // nil is a client without a timeout: runs have their own
}

// New makes a client. It makes no request.
func New(url, key string) *Client { return &Client{URL: url, Key: key} }

// FromEnv makes a client of ARENERO_URL, which may be left out for a server on
// this machine, and ARENERO_API_KEY.
func FromEnv() *Client {
	return New(cmp.Or(os.Getenv("ARENERO_URL"), "http://127.0.0.1:8000"), os.Getenv("ARENERO_API_KEY"))
}

// Run is one program for [Client.Execute].
type Run struct {
	Code     string
	Language string            // "" is python
	Image    string            // "" is python
	Files    map[string][]byte // what it finds in the work directory, by path
	Env      map[string]string //
	Stdin    string            // with it the code runs as a script, not as a cell
	Limits   arenero.Limits    // zero fields are the server's defaults
	Timeout  time.Duration     // 0 is the limits' default
}

// Execute runs code in a fresh sandbox, which is gone when it returns.
func (c *Client) Execute(ctx context.Context, r Run) (arenero.Result, error) {
	type content struct {
		Base64 []byte `json:"base64"`
	}
	files := map[string]content{}
	for path, data := range r.Files {
		files[path] = content{data}
	}
	body := struct {
		Code     string             `json:"code"`
		Language string             `json:"language,omitempty"`
		Image    string             `json:"image,omitempty"`
		Files    map[string]content `json:"files,omitempty"`
		Env      map[string]string  `json:"env,omitempty"`
		Stdin    string             `json:"stdin,omitempty"`
		Limits   limits             `json:"limits"`
		Timeout  float64            `json:"timeout,omitempty"`
	}{r.Code, r.Language, r.Image, files, r.Env, r.Stdin, limitsOf(r.Limits), r.Timeout.Seconds()}
	var res arenero.Result
	err := c.call(ctx, "execute", "POST", "/execute", body, &res)
	return res, err
}

// Images lists the images of the server.
func (c *Client) Images(ctx context.Context) ([]arenero.Image, error) {
	var out struct {
		Images []arenero.Image `json:"images"`
	}
	err := c.call(ctx, "list images", "GET", "/v1/images", nil, &out)
	return out.Images, err
}

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

// call makes a request with a JSON body and reads a JSON answer into out, unless
// it is nil.
func (c *Client) call(ctx context.Context, op, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return arenero.Errorf(arenero.Invalid, op, "", "encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	resp, err := c.do(ctx, op, method, path, "application/json", "application/json", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return broken(ctx, op, err)
	}
	return nil
}

// do makes a request and returns the answer if it is a good one; the caller
// closes its body.
func (c *Client) do(ctx context.Context, op, method, path, takes, gives string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, body)
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "%w", err)
	}
	req.Header.Set("Accept", takes)
	if body != nil {
		req.Header.Set("Content-Type", gives)
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	resp, err := cmp.Or(c.HTTP, plain()).Do(req)
	if err != nil {
		return nil, broken(ctx, op, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, problem(op, resp)
	}
	return resp, nil
}

// plain is the default client, kept from following redirects: a key is for the
// server it was made by.
func plain() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// problem is the error that a bad answer stands for.
func problem(op string, resp *http.Response) error {
	p := struct {
		Code   arenero.Code `json:"code"`
		Detail string       `json:"detail"`
		Hint   string       `json:"hint"`
	}{}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // an odd one is no problem of ours
	err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&p)
	if kind != "application/problem+json" || err != nil || p.Code == "" {
		return arenero.Errorf(arenero.Unavailable, op, "", "the server answered %s", resp.Status).
			WithHint("is this the address of an arenero server?")
	}
	return problemOf(op, p.Code, p.Detail, p.Hint)
}

func problemOf(op string, code arenero.Code, detail, hint string) error {
	return &arenero.Error{Code: code, Op: op, Err: errors.New(detail), Hint: hint}
}

// broken is the error of a request that got no answer, or no whole one.
func broken(ctx context.Context, op string, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return arenero.Errorf(arenero.Timeout, op, "", "%w", err)
	case ctx.Err() != nil:
		return arenero.Errorf(arenero.Canceled, op, "", "%w", err)
	}
	return arenero.Errorf(arenero.Unavailable, op, "", "%w", err).WithHint("is the server running? arenero serve")
}

func escape(s string) string { return url.PathEscape(s) }
