package rest

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// asker is what the middlewares learn of a request: who asks, and the request
// itself, for handlers that stream.
type asker struct {
	who host.Who
	w   http.ResponseWriter
	r   *http.Request
}

type askerKey struct{}

//nolint:errcheck // a route without the guard in front must fall at once
func askerOf(ctx context.Context) *asker { return ctx.Value(askerKey{}).(*asker) }

// logged writes one line a request. What clients say is quoted by slog.
func (d *Door) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		a := &asker{w: rec, r: r}
		r = r.WithContext(context.WithValue(r.Context(), askerKey{}, a))
		a.r = r
		next.ServeHTTP(rec, r)
		d.Log.Info("request", "method", readable(r.Method, 16), "path", readable(r.URL.Path, 256), "status", rec.status,
			"bytes", rec.bytes, "ms", float64(time.Since(start).Microseconds())/1000, "key", a.who.Key, "from", r.RemoteAddr)
	})
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter

	status int
	bytes  int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Unwrap is asked for by http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// recovered turns a fault of ours into an answer.
func (d *Door) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
				panic(v)
			}
			d.Log.Error("panic in handler", "path", readable(r.URL.Path, 256), "panic", v, "stack", string(debug.Stack()))
			refuse(w, problemOf(arenero.Errorf(arenero.Internal, "answer request", "", "a fault of ours; the log has more")))
		}()
		next.ServeHTTP(w, r)
	})
}

// refuse writes a problem where no handler was reached.
func refuse(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="arenero"`)
	}
	w.WriteHeader(p.Status)
	_ = strictJSON.Marshal(w, p) // the client may be gone
}

// rightHost refuses requests for a name that is not ours: a web page whose name
// was pointed to this address must not reach us.
func (d *Door) rightHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.knows(r.Host) {
			refuse(w, &Problem{
				Title: title(http.StatusMisdirectedRequest), Status: http.StatusMisdirectedRequest, Code: codeOf(http.StatusMisdirectedRequest),
				Detail: "check host: this server does not answer to the name " + readable(r.Host, 128),
				Hint:   "use 127.0.0.1 or localhost, or allow the name in the configuration",
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (d *Door) knows(hostport string) bool {
	name := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	switch name {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	return name != "" && slices.Contains(d.Names, name) || slices.Contains(d.Names, "*")
}

// rightOrigin refuses what web pages of others send.
func (d *Door) rightOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin != "" {
			u, err := url.Parse(origin)
			if err != nil || u.Host == "" || u.Host != r.Host || !d.knows(u.Host) {
				refuse(w, problemOf(arenero.Errorf(arenero.Denied, "check origin", "", "pages of %s may not use this server", readable(origin, 128))))
				return
			}
		}
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			refuse(w, problemOf(arenero.Errorf(arenero.Denied, "check origin", "", "pages of other sites may not use this server")))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticated lets nobody without a key go further, whether a route exists or
// not, but to the three public pages.
func (d *Door) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.public[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		who, err := d.Host.Authenticate(r.Context(), secretOf(r))
		if err != nil {
			refuse(w, problemOf(err))
			return
		}
		askerOf(r.Context()).who = who
		next.ServeHTTP(w, r)
	})
}

func secretOf(r *http.Request) string {
	if kind, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(kind, "Bearer") {
		return strings.TrimSpace(key)
	}
	return r.Header.Get("X-Api-Key")
}

// routed gives the answers of the mux for a path or a method it does not know
// our form.
func (d *Door) routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &recorder{ResponseWriter: nowhere{http.Header{}}}
		mux.ServeHTTP(probe, r)
		if probe.status >= 300 && probe.status < 400 || probe.status == 0 {
			probe.status = http.StatusNotFound
		}
		p := &Problem{Title: title(probe.status), Status: probe.status, Code: codeOf(probe.status), Detail: "find route: there is none", Hint: "see /docs"}
		if allow := probe.Header().Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			p.Detail = "find route: this path takes " + allow
		}
		refuse(w, p)
	})
}

// nowhere is a response nobody reads.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header         { return n.h }
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n nowhere) WriteHeader(int)             {}
