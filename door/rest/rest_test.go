package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/enginetest"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/store"
)

// house is a door with all that is behind it.
type house struct {
	*Door

	key  string
	host *host.Host
}

func build(t *testing.T) *house {
	t.Helper()
	db, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(host.Config{
		Engines: map[string]arenero.Engine{"local": enginetest.Local(t)}, DefaultEngine: "local", Images: enginetest.LocalImages(t), Store: db,
		VolumeDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	key, _, err := h.LocalKey(context.Background(), t.TempDir()+"/key")
	if err != nil {
		t.Fatal(err)
	}
	return &house{Door: New(Config{Host: h, Version: "test"}), key: key, host: h}
}

// ask sends one request with the local key; with, if not nil, changes it first.
func (h *house) ask(method, target, body string, with func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:8000"
	r.Header.Set("Authorization", "Bearer "+h.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if with != nil {
		with(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func problem(t *testing.T, res *http.Response) Problem {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("%d %s: %.300s", res.StatusCode, ct, b)
	}
	var p Problem
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%v: %.300s", err, b)
	}
	if p.Status != res.StatusCode || p.Code == "" || p.Detail == "" || p.Title == "" {
		t.Errorf("%d: %s", res.StatusCode, b)
	}
	return p
}

func TestEveryCodeHasAStatus(t *testing.T) {
	seen := map[int]arenero.Code{}
	for _, code := range arenero.Codes() {
		p := problemOf(arenero.Errorf(code, "do it", "x", "because").WithHint("mend it"))
		if p.Code != code || p.Status < 400 || p.Hint != "mend it" || p.Detail != "do it x: because" {
			t.Errorf("%s: %+v", code, p)
		}
		if other, twice := seen[p.Status]; twice {
			t.Errorf("%s and %s are both %d", code, other, p.Status)
		}
		seen[p.Status] = code
		if codeOf(p.Status) != code {
			t.Errorf("%d is %s, want %s", p.Status, codeOf(p.Status), code)
		}
	}
	if len(statuses) != len(arenero.Codes()) {
		t.Errorf("%d rows for %d codes", len(statuses), len(arenero.Codes()))
	}
	if p := problemOf(io.ErrUnexpectedEOF); p.Code != arenero.Internal {
		t.Errorf("%+v", p)
	}
}

// Every route but the public ones refuses those without a key, and with a wrong
// one, before it looks at anything else.
func TestNoRouteWithoutAKey(t *testing.T) {
	h := build(t)
	type row struct{ method, path string }
	rows := []row{{"GET", "/metrics"}, {"GET", "/no-such-route"}, {"POST", "/docs/x"}, {"GET", "/openapi.yaml"}}
	for _, op := range h.routes {
		if !h.public[op.Path] {
			rows = append(rows, row{op.Method, op.Path})
		}
	}
	if len(rows) < 20 {
		t.Fatalf("only %d routes", len(rows))
	}
	last := h.key[len(h.key)-1:]
	wrong := map[string]string{
		"none": "", "empty": "Bearer ", "other": "Bearer x", "cut": "Bearer " + h.key[:len(h.key)-1],
		"forged": "Bearer " + h.key[:len(h.key)-1] + map[bool]string{true: "a", false: "b"}[last != "a"],
		"basic":  "Basic " + h.key, "long": "Bearer " + strings.Repeat("a_", 5000), "unknown": "Bearer arn_abcdefghijkl_" + strings.Repeat("a", 52),
	}
	for _, r := range rows {
		for name, auth := range wrong {
			res := h.ask(r.method, r.path, `not even json`, func(q *http.Request) {
				q.Header.Del("Authorization")
				if auth != "" {
					q.Header.Set("Authorization", auth)
				}
			})
			if p := problem(t, res); res.StatusCode != http.StatusUnauthorized || p.Code != arenero.Unauthenticated || res.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s with %s key: %d", r.method, r.path, name, res.StatusCode)
			}
		}
	}
	for _, path := range []string{"/healthz", "/openapi.json", "/docs"} {
		if res := h.ask("GET", path, "", func(q *http.Request) { q.Header.Del("Authorization") }); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	if res := h.ask("GET", "/v1/sandboxes", "", func(q *http.Request) {
		q.Header.Del("Authorization")
		q.Header.Set("X-Api-Key", h.key)
	}); res.StatusCode != http.StatusOK {
		t.Errorf("X-API-Key: %d", res.StatusCode)
	}
}

func TestScopes(t *testing.T) {
	h := build(t)
	key, err := h.host.MakeKey(context.Background(), host.Local(), host.Key{Tenant: "default", Scopes: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	as := func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+key) }
	if res := h.ask("GET", "/v1/sandboxes", "", as); res.StatusCode != http.StatusOK {
		t.Errorf("read: %d", res.StatusCode)
	}
	if p := problem(t, h.ask("POST", "/v1/sandboxes", `{}`, as)); p.Code != arenero.Denied {
		t.Errorf("create: %+v", p)
	}
	all, err := h.host.Keys(context.Background(), host.Local())
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if err := h.host.RevokeKey(context.Background(), host.Local(), all[1].ID); err != nil {
		t.Fatal(err)
	}
	if p := problem(t, h.ask("GET", "/v1/sandboxes", "", as)); p.Code != arenero.Unauthenticated {
		t.Errorf("revoked: %+v", p)
	}
}

func TestRebindingIsRefused(t *testing.T) {
	h := build(t)
	for _, c := range []struct {
		host, origin, site string
		want               int
	}{
		{"127.0.0.1:8000", "", "", 200},
		{"localhost", "", "", 200},
		{"[::1]:8000", "", "", 200},
		{"LOCALHOST.:9", "", "", 200},
		{"evil.example", "", "", 421},
		{"127.0.0.1.evil.example:8000", "", "", 421},
		{"localhost.evil.example", "", "", 421},
		{"", "", "", 421},
		{"10.0.0.1:8000", "", "", 421},
		{"127.0.0.1:8000", "http://127.0.0.1:8000", "same-origin", 200},
		{"127.0.0.1:8000", "http://evil.example", "", 403},
		{"127.0.0.1:8000", "null", "", 403},
		{"127.0.0.1:8000", "http://127.0.0.1:9999", "", 403},
		{"127.0.0.1:8000", "", "cross-site", 403},
	} {
		for _, path := range []string{"/v1/sandboxes", "/docs", "/healthz"} {
			res := h.ask("GET", path, "", func(r *http.Request) {
				r.Host = c.host
				if c.origin != "" {
					r.Header.Set("Origin", c.origin)
				}
				if c.site != "" {
					r.Header.Set("Sec-Fetch-Site", c.site)
				}
			})
			if res.StatusCode != c.want {
				t.Errorf("%s host %q origin %q site %q: %d, want %d", path, c.host, c.origin, c.site, res.StatusCode, c.want)
			}
			if c.want >= 400 {
				problem(t, res)
			}
		}
	}
	named := New(Config{Host: h.host, Names: []string{"box.example"}})
	r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	r.Host = "box.example:80"
	w := httptest.NewRecorder()
	if named.ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("a name that was allowed: %d", w.Code)
	}
}

func TestBadInput(t *testing.T) {
	h := build(t)
	long := strings.Repeat("x", 9<<20)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		say                      string // in detail
	}{
		{"no json", "POST", "/execute", `print(1)`, 400, ""},
		{"empty", "POST", "/execute", ``, 400, ""},
		{"cut", "POST", "/execute", `{"code": "1"`, 400, ""},
		{"list", "POST", "/execute", `[]`, 400, ""},
		{"null", "POST", "/execute", `null`, 400, ""},
		{"no code", "POST", "/execute", `{}`, 400, "code"},
		{"wrong type", "POST", "/execute", `{"code": 1}`, 400, "code"},
		{"unknown field", "POST", "/execute", `{"code": "1", "cdoe": 2}`, 400, "cdoe"},
		{"NUL", "POST", "/execute", `{"code": "a\u0000b"}`, 400, "NUL"},
		{"not UTF-8", "POST", "/execute", "{\"code\": \"\xff\xfe\"}", 400, "UTF-8"},
		{"deep", "POST", "/execute", `{"code":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`, 400, "deep"},
		{"code too long", "POST", "/execute", `{"code": "` + long + `"}`, 413, "bytes"},
		{"50 MB", "POST", "/execute", `{"code": "` + strings.Repeat("y", 50<<20) + `"}`, 413, ""},
		{"negative timeout", "POST", "/execute", `{"code": "1", "timeout": -1}`, 400, "timeout"},
		{"absurd timeout", "POST", "/execute", `{"code": "1", "timeout": 1e300}`, 400, "timeout"},
		{"number too big", "POST", "/execute", `{"code": "1", "timeout": 1e999}`, 400, ""},
		{"negative memory", "POST", "/execute", `{"code": "1", "limits": {"memory": -5}}`, 400, "memory"},
		{"absurd memory", "POST", "/execute", `{"code": "1", "limits": {"memory": 9000000000000000000}}`, 400, "memory"},
		{"memory overflow", "POST", "/execute", `{"code": "1", "limits": {"memory": 1e30}}`, 400, ""},
		{"absurd cpus", "POST", "/execute", `{"code": "1", "limits": {"cpus": 1000}}`, 400, "cpus"},
		{"more cpus than there are", "POST", "/v1/sandboxes", `{"limits": {"cpus": 511}}`, 429, "cpus"},
		{"dotdot", "POST", "/execute", `{"code": "1", "files": {"../x": "1"}}`, 400, ".."},
		{"file of a number", "POST", "/execute", `{"code": "1", "files": {"x": 1}}`, 400, ""},
		{"file of nothing", "POST", "/execute", `{"code": "1", "files": {"x": {}}}`, 400, ""},
		{"file not base64", "POST", "/execute", `{"code": "1", "files": {"x": {"base64": "!!"}}}`, 400, "base64"},
		{"env name", "POST", "/execute", `{"code": "1", "env": {"A=B": "1"}}`, 400, "variable"},
		{"env NUL", "POST", "/v1/sandboxes", `{"env": {"A": "\u0000"}}`, 400, "NUL"},
		{"unknown image", "POST", "/execute", `{"code": "1", "image": "no-such"}`, 404, "image"},
		{"bad image", "POST", "/execute", `{"code": "1", "image": "../../etc/passwd"}`, 400, ""},
		{"unknown engine", "POST", "/v1/sandboxes", `{"engine": "warp"}`, 404, "engine"},
		{"bad hostname", "POST", "/v1/sandboxes", `{"hostname": "a b"}`, 400, "hostname"},
		{"negative lifetime", "POST", "/v1/sandboxes", `{"lifetime": -1}`, 400, "lifetime"},
		{"unknown sandbox", "GET", "/v1/sandboxes/sbx-none", ``, 404, "sandbox"},
		{"end unknown sandbox", "DELETE", "/v1/sandboxes/sbx-none", ``, 404, "sandbox"},
		{"long id", "GET", "/v1/sandboxes/" + strings.Repeat("a", 5000), ``, 400, "id"},
		{"odd id", "GET", "/v1/sandboxes/%00%ff%1b", ``, 404, "sandbox"},
		{"unknown state", "GET", "/v1/sandboxes?state=flying", ``, 400, "state"},
		{"limit", "GET", "/v1/sandboxes?limit=100000", ``, 400, "limit"},
		{"unknown query", "GET", "/v1/sandboxes?lmit=1", ``, 400, "lmit"},
		{"kernel of unknown sandbox", "POST", "/v1/sandboxes/sbx-none/kernels/python/execute", `{"code": "1"}`, 404, "sandbox"},
		{"bad kernel name", "POST", "/v1/sandboxes/sbx-none/kernels/a%20b/execute", `{"code": "1"}`, 400, "name"},
		{"no argv", "POST", "/v1/sandboxes/sbx-none/exec", `{"argv": []}`, 400, "argv"},
		{"file of unknown sandbox", "GET", "/v1/sandboxes/sbx-none/files?path=x", ``, 404, "sandbox"},
		{"no path", "GET", "/v1/sandboxes/sbx-none/files", ``, 400, "path"},
		{"file dotdot", "GET", "/v1/sandboxes/sbx-none/files?path=/a/../b", ``, 400, ".."},
		{"file NUL", "GET", "/v1/sandboxes/sbx-none/files?path=a%00b", ``, 400, "NUL"},
		{"file not UTF-8", "GET", "/v1/sandboxes/sbx-none/files?path=%ff", ``, 400, "UTF-8"},
		{"bad mode", "PUT", "/v1/sandboxes/sbx-none/files?path=x&mode=9", `x`, 400, "mode"},
		{"setuid mode", "PUT", "/v1/sandboxes/sbx-none/files?path=x&mode=4755", `x`, 400, "mode"},
		{"no route", "GET", "/v2", ``, 404, "route"},
		{"wrong method", "PATCH", "/v1/sandboxes", ``, 405, "takes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := h.ask(c.method, c.path, c.body, nil)
			p := problem(t, res)
			if res.StatusCode != c.status || !strings.Contains(p.Detail, c.say) {
				t.Errorf("%d %+v, want %d with %q", res.StatusCode, p, c.status, c.say)
			}
			if strings.ContainsFunc(p.Detail+p.Hint, func(r rune) bool { return r < ' ' }) || len(p.Detail) > 5000 {
				t.Errorf("unreadable: %.200q", p.Detail)
			}
		})
	}
	if all, err := h.host.List(context.Background(), host.Local(), host.Filter{}); err != nil || len(all) != 0 {
		t.Errorf("left behind: %v %v", all, err)
	}
	if res := h.ask("POST", "/execute", `code=1`, func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }); res.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("form: %d", res.StatusCode)
	} else {
		problem(t, res)
	}
}

func TestDescription(t *testing.T) {
	h := build(t)
	res := h.ask("GET", "/openapi.json", "", nil)
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			Responses map[string]json.RawMessage `json:"responses"`
			Security  *[]any                     `json:"security"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("openapi %s", doc.OpenAPI)
	}
	for _, op := range h.routes {
		got, ok := doc.Paths[op.Path][strings.ToLower(op.Method)]
		if !ok {
			t.Errorf("%s %s is not described", op.Method, op.Path)
		}
		if b := got.Responses["default"]; !bytes.Contains(b, []byte("Problem")) {
			t.Errorf("%s %s: errors are %s", op.Method, op.Path, b)
		}
	}
	if b := doc.Components.Schemas["ExecuteResult"]; !bytes.Contains(b, []byte(`"duration_ms":{"description":"Wall clock inside the sandbox, in milliseconds","type":"number"}`)) {
		t.Errorf("schema: %s", b)
	}
	for name := range doc.Components.Schemas {
		if strings.HasPrefix(name, "Error") {
			t.Errorf("huma's error is described: %s", name)
		}
	}
	raw, err := h.api.OpenAPI().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range regexp.MustCompile(`"#/components/schemas/([^"]+)"`).FindAllSubmatch(raw, -1) {
		if doc.Components.Schemas[string(ref[1])] == nil {
			t.Errorf("%s is referred to, but not there", ref[1])
		}
	}
}

// The page of the docs works without any other server.
func TestDocsAreSelfContained(t *testing.T) {
	h := build(t)
	res := h.ask("GET", "/docs", "", nil)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"http://", "https://", "src=", "<link", "@import", "innerHTML"} {
		if bytes.Contains(b, []byte(bad)) {
			t.Errorf("the page has %q", bad)
		}
	}
	csp := res.Header.Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy: %s", csp)
	}
}

func TestMetrics(t *testing.T) {
	h := build(t)
	b, err := io.ReadAll(h.ask("GET", "/metrics", "", nil).Body)
	if err != nil || !bytes.Contains(b, []byte(`arenero_sandboxes{state="running"} 0`)) {
		t.Errorf("%v %.500s", err, b)
	}
}

func FuzzStrictJSON(f *testing.F) {
	f.Add([]byte(`{"code": "print(1)", "files": {"a": "b", "c": {"base64": "aGk="}}}`))
	f.Add([]byte(`[[[["\"]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v any
		if err := strictJSON.Unmarshal(b, &v); err == nil && !json.Valid(b) {
			t.Errorf("accepted %q", b)
		}
		var in struct{ Files map[string]fileContent }
		_ = strictJSON.Unmarshal(b, &in) // is not to panic
	})
}

func TestMain(m *testing.M) {
	enginetest.LocalAgent()
	os.Exit(m.Run())
}
