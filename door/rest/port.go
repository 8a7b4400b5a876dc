package rest

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// port passes a request on to a server inside a sandbox: HTTP and WebSocket, with
// bodies that stream. The path is cut off at the port; what the server answers is
// not rewritten, so its pages must use relative links. Our keys do not go in.
func (d *Door) port(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		refuse(w, problemOf(arenero.Errorf(arenero.Invalid, "use port", "", "the port must be between 1 and 65535")))
		return
	}
	g, err := d.guest(r.Context(), r.PathValue("id"), host.ScopeRun)
	if err != nil {
		refuse(w, problemOf(err))
		return
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.DialPort(context.WithoutCancel(ctx), port) // it lives as long as the exchange
		},
		DisableKeepAlives:      true, // a connection is of one request: the next may find another sandbox
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	inside := &url.URL{Scheme: "http", Host: "localhost:" + strconv.Itoa(port)}
	p := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(q *httputil.ProxyRequest) {
			q.Out.URL.Scheme, q.Out.URL.Host = inside.Scheme, inside.Host
			q.Out.URL.Path, q.Out.URL.RawPath = "/"+q.In.PathValue("path"), ""
			q.Out.Host = inside.Host
			q.Out.Header.Del("Authorization")
			q.Out.Header.Del("X-Api-Key")
			q.Out.Header.Del("Cookie") // of our origin, not of theirs
			q.Out.Header.Set("X-Forwarded-Host", q.In.Host)
			q.Out.Header.Set("X-Forwarded-Prefix", strings.TrimSuffix(q.In.URL.Path, q.In.PathValue("path")))
		},
		ModifyResponse: func(res *http.Response) error {
			// What a guest serves must not act as a page of ours.
			res.Header.Del("Set-Cookie")
			res.Header.Set("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups")
			res.Header.Set("X-Content-Type-Options", "nosniff")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if arenero.CodeOf(err) == arenero.Internal {
				err = arenero.Errorf(arenero.Unavailable, "use port", r.PathValue("port"), "the server inside broke off: %w", err)
			}
			refuse(w, badGateway(err))
		},
	}
	p.ServeHTTP(w, r)
}

// badGateway says that it was the guest's server that failed.
func badGateway(err error) *Problem {
	p := problemOf(err)
	p.Status, p.Title = http.StatusBadGateway, title(http.StatusBadGateway)
	if p.Hint == "" {
		p.Hint = "start a server on this port inside the sandbox first"
	}
	return p
}
