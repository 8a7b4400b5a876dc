package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCleaner(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"text":              {"héllo\tworld\r\n", "héllo\tworld\r\n"},
		"colour":            {"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"},
		"colour left on":    {"\x1b[31mred", "\x1b[31mred\x1b[0m"},
		"true colour":       {"\x1b[38;2;8;8;8mx", "\x1b[38;2;8;8;8mx\x1b[0m"},
		"concealed":         {"\x1b[8mhidden", "␛[8mhidden"},
		"concealed later":   {"\x1b[38;5;8;8mhidden", "␛[38;5;8;8mhidden"},
		"title":             {"\x1b]0;pwned\x07", "␛]0;pwned" + `\a`},
		"clipboard":         {"\x1b]52;c;cm0gLXJm\x07", "␛]52;c;cm0gLXJm" + `\a`},
		"cursor":            {"\x1b[2J\x1b[H", "␛[2J␛[H"},
		"asks to answer":    {"\x1b[6n\x1b[c", "␛[6n␛[c"},
		"8-bit csi":         {"\u009b2J", `\u009b2J`},
		"raw 8-bit csi":     {"\x9b2J", `\x9b2J`},
		"delete":            {"a\x7fb", `a\x7fb`},
		"direction":         {"a\u202eb", `a\u202eb`},
		"half a rune":       {"a\xe2\x82", `a\xe2\x82`},
		"half a sequence":   {"a\x1b[3", "a␛[3"},
		"very long colours": {"\x1b[" + strings.Repeat("1;", 100) + "m", "␛[" + strings.Repeat("1;", 100) + "m"},
	} {
		t.Run(name, func(t *testing.T) {
			// Whole, and byte by byte: the guest decides where pieces end.
			for _, size := range []int{len(c.in), 1, 3} {
				if got := clean(t, c.in, size); got != c.want {
					t.Errorf("pieces of %d: got %q, want %q", size, got, c.want)
				}
			}
		})
	}
}

func clean(t testing.TB, in string, size int) string {
	t.Helper()
	var out bytes.Buffer
	c := cleaner{w: &out}
	for rest := []byte(in); len(rest) > 0; {
		n := min(size, len(rest))
		if _, err := c.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func FuzzCleaner(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]0;x\x07"), 1)
	f.Add([]byte("\x1b[38;5;1m\xff\u202e"), 2)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		got := clean(t, string(in), max(1, size))
		if !utf8.ValidString(got) {
			t.Fatalf("not UTF-8: %q", got)
		}
		for rest := got; rest != ""; {
			if rest[0] == 0x1b {
				n, _ := sgr([]byte(rest))
				if n == 0 {
					t.Fatalf("a sequence that is no colour came through: %q", got)
				}
				rest = rest[n:]
				continue
			}
			r, n := utf8.DecodeRuneInString(rest)
			if harmful(r) && !strings.ContainsRune("\n\r\t\b", r) {
				t.Fatalf("%U came through: %q", r, got)
			}
			rest = rest[n:]
		}
	})
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain é":    "plain é",
		"a\nb":       `a\nb`,
		"\x1b[31m":   `\x1b[31m`,
		"\xff":       `\xff`,
		"a\u202eb":   `a\u202eb`,
		`back\slash`: `back\slash`,
	} {
		if got := printable(in); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestStripColours(t *testing.T) {
	if got := stripColours("\x1b[0;31mValueError\x1b[0m: \x1b]0;x"); got != "ValueError: \x1b]0;x" {
		t.Errorf("got %q", got)
	}
}

func TestPainters(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(k string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == k {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	if painterOf(env("TERM", "xterm-256color")) != nil || painterOf(env("TERM_PROGRAM", "iTerm.app", "TMUX", "x")) != nil {
		t.Error("a terminal that shows no pictures was sent one")
	}
	var out bytes.Buffer
	if err := painterOf(env("TERM_PROGRAM", "iTerm.app"))(&out, "a.png", []byte("png")); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b]1337;File=name=YS5wbmc=;size=3;inline=1:cG5n\x07\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := painterOf(env("TERM", "xterm-kitty"))(&out, "", make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\x1b_G"); got != 2 || !strings.Contains(out.String(), "a=T,f=100,m=1;") {
		t.Errorf("%d pieces: %.80q", got, out.String())
	}
}

func TestFlagValues(t *testing.T) {
	for in, want := range map[string]int64{"512M": 512 << 20, "1.5GiB": 3 << 29, "100": 100, "2 kb": 2048, "1T": 1 << 40} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "M", "-1", "0", "1X", "NaN", "Inf", "1e300G", "512MM"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("%q became %d", in, got)
		}
	}
	for in, want := range map[string]string{"90": "1m30s", "2m": "2m0s", "0.5": "500ms", "1h30m": "1h30m0s"} {
		if got, err := parseSeconds(in); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "0", "soon", "1e300", "NaN", "Inf"} {
		if got, err := parseSeconds(in); err == nil {
			t.Errorf("%q became %v", in, got)
		}
	}
}
