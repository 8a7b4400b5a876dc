package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/arenero/arenero"
)

// listen is a server inside, on the family that is named; it answers what it got
// once its client has said all.
func listen(t testing.TB, network, host string) int {
	t.Helper()
	l, err := net.Listen(network, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				_, _ = c.Write(b)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestDialPort(t *testing.T) {
	g := native(t)
	for _, port := range []int{listen(t, "tcp4", "127.0.0.1"), listen(t, "tcp6", "::1")} {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := g.DialPort(ctx, port)
		cancel() // bounds the dialling only
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte(strconv.Itoa(port)), 300_000)
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Time{})
		half, ok := c.(interface{ CloseWrite() error })
		if !ok {
			t.Fatal("the connection cannot be half closed")
		}
		if err := half.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatal(len(got), err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, port := range []int{-1, 0, 65536, 1 << 20} {
		_, err := g.DialPort(t.Context(), port)
		wantCode(t, err, arenero.Invalid)
	}
	_, err := g.DialPort(t.Context(), 1)
	wantCode(t, err, arenero.Unavailable)
	if arenero.HintOf(err) == "" {
		t.Fatal("no hint")
	}
}
