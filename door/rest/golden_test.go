package rest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the answers into testdata")

// TestConversations plays the requests in testdata against a real server over
// real sandboxes, and compares the answers. A file is a list of exchanges
// between lines of "====": a request line, headers, an empty line and a body;
// "----"; the answer. SBX stands for the sandbox made last.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	h := build(t)
	s := httptest.NewServer(h)
	defer s.Close()
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			talk := &talk{t: t, url: s.URL, key: h.key}
			var got []string
			for exchange := range strings.SplitSeq(strings.TrimSpace(string(want)), "\n====\n") {
				request, _, _ := strings.Cut(exchange, "\n----")
				got = append(got, request+"\n----\n"+talk.exchange(request))
			}
			text := strings.Join(got, "\n====\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if text != string(want) {
				t.Errorf("got\n%s\nwant\n%s", text, want)
			}
		})
	}
}

type talk struct {
	t        *testing.T
	url, key string
	sandbox  string
	last     string // answer
}

func (k *talk) exchange(request string) string {
	k.t.Helper()
	head, body, _ := strings.Cut(request, "\n\n")
	lines := strings.Split(head, "\n")
	method, target, _ := strings.Cut(lines[0], " ")
	if strings.HasPrefix(target, "/v1/sandboxes/SBX") && k.sandbox == "" {
		k.t.Fatalf("no sandbox yet: %s", k.last)
	}
	r, err := http.NewRequest(method, k.url+strings.Replace(target, "SBX", k.sandbox, 1), strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	if body != "" && method == "POST" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("X-Api-Key", k.key)
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	if m := regexp.MustCompile(`^/v1/sandboxes/(sbx-\w+)$`).FindStringSubmatch(res.Header.Get("Location")); m != nil {
		k.sandbox = m[1]
	}
	k.last = string(b)
	var out strings.Builder
	fmt.Fprintf(&out, "%d\n", res.StatusCode)
	for _, name := range []string{"Content-Type", "Location", "Retry-After", "Allow", "Content-Disposition"} {
		if v := res.Header.Get(name); v != "" {
			fmt.Fprintf(&out, "%s: %s\n", name, v)
		}
	}
	var trailers []string
	for name, v := range res.Trailer {
		trailers = append(trailers, fmt.Sprintf("trailer %s: %s\n", name, strings.Join(v, ",")))
	}
	slices.Sort(trailers)
	return strings.TrimSpace(steady(out.String() + "\n" + pretty(b) + "\n" + strings.Join(trailers, "")))
}

func pretty(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, bytes.TrimSpace(b), "", "  ") == nil {
		return out.String()
	}
	return string(b)
}

// steady replaces what differs from run to run.
func steady(s string) string {
	for _, r := range [][2]string{
		{`sbx-[a-z2-7]{26}`, "SBX"},
		{`"duration_ms":( ?)[0-9.e+-]+`, `"duration_ms":${1}0`},
		{`"(created|ends|modified)":( ?)"[^"]+"`, `"$1":$2"TIME"`},
		{`"(owner|group)":( ?)"[^"]+"`, `"$1":$2"NAME"`},
		{`"pid":( ?)[0-9]+`, `"pid":${1}1`},
		{`"used":( ?)[0-9]+`, `"used":${1}1`},
		{`<ipython-input-[^>]+>|/tmp/ipykernel_[0-9]+/[0-9]+\.py`, "CELL"},
		{`0x[0-9a-f]{6,}`, "0xADDRESS"},
	} {
		s = regexp.MustCompile(r[0]).ReplaceAllString(s, r[1])
	}
	return s
}
