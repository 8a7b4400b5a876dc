package agent_test

import (
	"errors"
	"io"
	"testing"

	"github.com/arenero/arenero"
)

func BenchmarkExecTrue(b *testing.B) {
	g := native(b)
	for b.Loop() {
		if r := run(b, g, arenero.Command{Argv: []string{"/bin/true"}}); r.exit.Code != 0 {
			b.Fatal(r)
		}
	}
}

func BenchmarkStdout(b *testing.B) {
	g := native(b)
	p, err := g.Start(b.Context(), arenero.Command{Argv: []string{"cat", "/dev/zero"}})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	left := 0
	for b.Loop() {
		for left += 1 << 20; left > 0; {
			e, err := p.Next()
			if err != nil {
				b.Fatal(err)
			}
			left -= len(e.Stdout)
		}
	}
}

const bulk = 64 << 20

func BenchmarkUpload(b *testing.B) {
	g, dir := native(b), shortDir(b)
	b.SetBytes(bulk)
	for b.Loop() {
		if _, err := g.WriteFile(b.Context(), "root", dir+"/f", 0, io.LimitReader(zeros{}, bulk)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDownload(b *testing.B) {
	g, dir := native(b), shortDir(b)
	if _, err := g.WriteFile(b.Context(), "root", dir+"/f", 0o644, io.LimitReader(zeros{}, bulk)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(bulk)
	for b.Loop() {
		r, _, err := g.ReadFile(b.Context(), "", dir+"/f", 0, -1)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); n != bulk || err != nil {
			b.Fatal(n, err)
		}
		_ = r.Close()
	}
}

func BenchmarkExecute(b *testing.B) {
	g := native(b)
	startKernel(b, g)
	for b.Loop() {
		x, err := g.Execute(b.Context(), arenero.Execute{Kernel: "k", Code: "1+1"})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = x.Next()
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		_ = x.Close()
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
