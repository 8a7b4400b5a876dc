package client

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/arenero/arenero"
)

// PortURL is where the server shows a port of the sandbox. Requests to it need the
// client's key, as all do; [Sandbox.Port] adds it.
func (s *Sandbox) PortURL(port int) string {
	return s.c.base() + s.path("/ports/"+strconv.Itoa(port)) + "/"
}

// Port takes requests to a port of the sandbox, HTTP and WebSocket, whatever host
// their URLs name:
//
//	web := http.Client{Transport: sb.Port(8080)}
//	resp, err := web.Get("http://sandbox/index.html")
//
// Keys and cookies do not go in, and what answers is what the code inside chose
// to answer: it is not to be trusted. The sandbox's server must listen on its
// loopback; 502 says that it does not.
func (s *Sandbox) Port(port int) http.RoundTripper { return &portal{s, port} }

type portal struct {
	sb   *Sandbox
	port int
}

// RoundTrip implements http.RoundTripper.
func (p *portal) RoundTrip(r *http.Request) (*http.Response, error) {
	base, err := url.Parse(p.sb.PortURL(p.port))
	if err != nil {
		return nil, arenero.Errorf(arenero.Invalid, "use port", strconv.Itoa(p.port), "%w", err)
	}
	out := r.Clone(r.Context())
	raw := base.EscapedPath() + strings.TrimPrefix(r.URL.EscapedPath(), "/")
	out.URL.Scheme, out.URL.Host, out.URL.User = base.Scheme, base.Host, nil
	out.URL.Path, out.URL.RawPath = base.Path+strings.TrimPrefix(r.URL.Path, "/"), raw
	out.Host = ""
	// Of the page that asks, the server would judge as of one that asks itself.
	for name := range out.Header {
		if name == "Origin" || name == "Cookie" || strings.HasPrefix(name, "Sec-Fetch-") {
			out.Header.Del(name)
		}
	}
	p.sb.c.sign(out.Header)
	if t := p.sb.c.http().Transport; t != nil {
		return t.RoundTrip(out)
	}
	return http.DefaultTransport.RoundTrip(out)
}
