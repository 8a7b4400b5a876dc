// Package rest is the plain HTTP door: JSON in, JSON or a stream out, described
// by OpenAPI 3.1 at /openapi.json and readable at /docs.
//
// It translates and nothing else. A request is logged, its Host and Origin are
// checked against DNS rebinding, its key is turned into a tenant, its body is
// bounded and checked, and then it is one call of the host. Every failure is one
// [Problem].
package rest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// Config is what a Door is made of. Host is needed.
type Config struct {
	Host    *host.Host
	Version string   // of arenero, for /healthz and the description
	Names   []string // host names it answers to besides the loopback's; "*" is any
	Log     *slog.Logger
	Grace   time.Duration // how long calls in flight may go on at shutdown; 0 is 10 s
}

// Door is an http.Handler. It holds no state but its routes.
type Door struct {
	Config

	handler http.Handler
	api     huma.API
	routes  []huma.Operation
	public  map[string]bool // paths that need no key
}

// New makes a door. It opens no port: see [Door.Serve].
func New(c Config) *Door {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	d := &Door{Config: c, public: map[string]bool{"/healthz": true, "/openapi.json": true, "/docs": true}}
	mux := http.NewServeMux()
	d.api = humago.New(mux, describe(c.Version))
	d.api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(statusContext{ctx}) })
	d.register()
	d.finishDescription()
	mux.Handle("GET /docs", docs())
	mux.HandleFunc("GET /v1/sandboxes/{id}/exec/ws", d.execSocket)
	mux.HandleFunc("GET /v1/sandboxes/{id}/processes/{pid}/ws", d.processSocket)
	mux.HandleFunc("/v1/sandboxes/{id}/ports/{port}/{path...}", d.port)
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Host.Metrics(), promhttp.HandlerOpts{}))
	d.handler = d.logged(d.recovered(d.rightHost(d.rightOrigin(d.authenticated(d.routed(mux))))))
	return d
}

// ServeHTTP answers one request.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// Serve answers on a listener, which it closes, until ctx ends. Calls in flight
// then have the grace to finish; after it they are cut off, and told so where the
// answer has not begun. It returns nil when ctx ended it.
func (d *Door) Serve(ctx context.Context, l net.Listener) error {
	calls, cutOff := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutOff(nil)
	s := &http.Server{
		Handler:           d,
		BaseContext:       func(net.Listener) context.Context { return calls },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // joined below, on either way out
	select {
	case err := <-served:
		return arenero.Errorf(arenero.Unavailable, "serve", l.Addr().String(), "%w", err)
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(calls, d.Grace)
	err := s.Shutdown(wait)
	cancel()
	if err != nil { // some calls go on
		cutOff(errStopping)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		err = s.Shutdown(last)
		cancel()
	}
	if err != nil {
		err = s.Close()
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	if err != nil {
		return arenero.Errorf(arenero.Internal, "stop serving", "", "%w", err)
	}
	return nil
}

// errStopping is why the calls that outlast the grace are cut off.
var errStopping = errors.New("the daemon is stopping")

// told replaces what a call says that was cut off by us: it was not the client
// who went away.
func told(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStopping) {
		return arenero.Errorf(arenero.Unavailable, "answer request", "", "%w", errStopping).
			WithHint("what the call had begun was stopped; try again when the daemon is back")
	}
	return err
}

func describe(version string) huma.Config {
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "arenero", Version: version,
				Description: "Sandboxes for code nobody reviewed. Send a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`; " +
					"`arenero key show` prints the local one.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer"},
					"key":    {Type: "apiKey", In: "header", Name: "X-API-Key"},
				},
			},
			Security: []map[string][]string{{"bearer": {}}, {"key": {}}},
		},
		OpenAPIPath:                  "/openapi",
		Formats:                      map[string]huma.Format{"application/json": strictJSON, "json": strictJSON},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{ours},
	}
	return c
}
