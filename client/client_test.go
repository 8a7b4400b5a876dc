package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

// What the client says to a real server, and hears from it, is tested in e2e.
// Here are servers that are not ours, or that break.

func TestNotOurServer(t *testing.T) {
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	defer elsewhere.Close()
	_, err := New(elsewhere.URL, "").Execute(t.Context(), Run{Code: "1"})
	if arenero.CodeOf(err) != arenero.Unavailable || !strings.Contains(arenero.HintOf(err), "address") {
		t.Errorf("code %s, hint %q: %v", arenero.CodeOf(err), arenero.HintOf(err), err)
	}
}

func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = New("http://"+l.Addr().String(), "").Execute(t.Context(), Run{Code: "1"})
	if arenero.CodeOf(err) != arenero.Unavailable || !strings.Contains(arenero.HintOf(err), "arenero serve") {
		t.Errorf("code %s, hint %q: %v", arenero.CodeOf(err), arenero.HintOf(err), err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = New("http://"+l.Addr().String(), "").Execute(gone, Run{Code: "1"})
	if arenero.CodeOf(err) != arenero.Canceled {
		t.Errorf("canceled: %v", err)
	}
}

// TestKeyStaysHome checks that a redirect does not carry the key elsewhere.
func TestKeyStaysHome(t *testing.T) {
	var got string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer thief.Close()
	lure := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer lure.Close()
	if _, err := New(lure.URL, "arn_secret").Images(t.Context()); err == nil {
		t.Error("a redirect was followed")
	}
	if got != "" {
		t.Errorf("the key went to another server: %q", got)
	}
}

func TestReadEvent(t *testing.T) {
	const in = ": still here\n\nid: 7\nevent: stdout\ndata: {\"text\":\"a\"}\n\nevent:end\r\ndata:1\r\ndata:2\r\n\r\nevent: cut"
	for name, r := range map[string]io.Reader{"whole": strings.NewReader(in), "by bytes": iotest.OneByteReader(strings.NewReader(in))} {
		b := bufio.NewReaderSize(r, 16)
		var got []event
		for {
			e, err := readEvent(b)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, e)
		}
		want := []event{{"stdout", []byte(`{"text":"a"}`)}, {"end", []byte("1\n2")}}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(event{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestLargeEvent(t *testing.T) {
	if _, err := readLine(bufio.NewReader(strings.NewReader(strings.Repeat("x", 1<<20))), 1<<16); err == nil {
		t.Error("a line without an end was read whole")
	}
}

func FuzzReadEvent(f *testing.F) {
	f.Add([]byte("event: display\ndata: {\"mime\":{\"text/plain\":\"x\"}}\n\nevent: end\ndata: {}\n\n"))
	f.Add([]byte("data\n\n:\nevent:error\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReader(strings.NewReader(string(in)))
		for {
			e, err := readEvent(r)
			if err != nil {
				return
			}
			// Whatever it says, it is an event or an error.
			if k, err := kernelEvent(e); err == nil && e.name == "end" && k.End == nil {
				t.Fatal("an end was lost")
			}
			_, _ = processEvent(e)
		}
	})
}
