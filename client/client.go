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
	"cmp"
	"context"
	"net/http"
	"os"
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

	IdempotencyKey string // with it, a repeated call gets the answer of the first
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
	err := c.callOnce(ctx, "execute", "POST", "/execute", r.IdempotencyKey, body, &res)
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
