package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A terminal obeys what it is told: it can be made to lie about what was printed,
// to answer as if the user had typed, to write files. What a sandbox prints
// therefore goes through a cleaner before it reaches one. To a pipe or a file it
// goes byte for byte.

// isTerminal says whether f is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// printable makes text from anywhere safe for one line of a terminal or a log.
func printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case harmful(r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// harmful are the runes that change how others are shown: controls and the marks
// that turn the direction of text.
func harmful(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// A cleaner writes text to a terminal and takes the power out of it: of all
// control sequences only colours pass, and of all controls those that move
// within the line. The rest is shown, not obeyed. Write never fails for what the
// text is; call flush at the end.
type cleaner struct {
	w      io.Writer
	held   []byte // the start of a sequence or of a rune whose end has not come
	tinted bool   // a colour was set and not taken back
}

// maxSGR bounds a colour sequence: "\x1b[38;2;255;255;255;48;2;255;255;255m" is 40.
const maxSGR = 64

// Write implements io.Writer.
func (c *cleaner) Write(p []byte) (int, error) {
	in := p
	if len(c.held) > 0 {
		in = slices.Concat(c.held, p)
		c.held = nil
	}
	var out bytes.Buffer
	for len(in) > 0 {
		n := c.step(&out, in)
		if n == 0 {
			c.held = bytes.Clone(in)
			break
		}
		in = in[n:]
	}
	if _, err := c.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// step takes one rune or sequence off in and returns its length; 0 asks for more.
func (c *cleaner) step(out *bytes.Buffer, in []byte) int {
	if in[0] == 0x1b {
		n, more := sgr(in)
		switch {
		case more:
			return 0
		case n > 0:
			out.Write(in[:n])
			c.tinted = true
			return n
		}
		out.WriteString("␛")
		return 1
	}
	if !utf8.FullRune(in) {
		return 0
	}
	r, n := utf8.DecodeRune(in)
	switch {
	case r == '\n', r == '\r', r == '\t', r == '\b':
		out.WriteRune(r)
	case r == utf8.RuneError && n == 1, harmful(r):
		out.WriteString(printable(string(in[:n])))
	default:
		out.Write(in[:n])
	}
	return n
}

// flush writes what is held and takes colours back.
func (c *cleaner) flush() error {
	if len(c.held) > 0 {
		if _, err := io.WriteString(c.w, strings.ReplaceAll(printable(string(c.held)), `\x1b`, "␛")); err != nil {
			return err
		}
		c.held = nil
	}
	if c.tinted {
		c.tinted = false
		_, err := io.WriteString(c.w, "\x1b[0m")
		return err
	}
	return nil
}

// sgr returns the length of a colour sequence at the start of in, 0 if it is
// something else; more says that it may be one whose end has not come. Concealed
// text (8) is something else.
func sgr(in []byte) (n int, more bool) {
	if len(in) < 2 {
		return 0, true
	}
	if in[1] != '[' {
		return 0, false
	}
	for i := 2; i < len(in) && i < maxSGR; i++ {
		switch ch := in[i]; {
		case ch >= '0' && ch <= '9', ch == ';', ch == ':':
		case ch == 'm' && !conceals(string(in[2:i])):
			return i + 1, false
		default:
			return 0, false
		}
	}
	return 0, len(in) < maxSGR
}

func conceals(params string) bool {
	fields := strings.FieldsFunc(params, func(r rune) bool { return r == ';' || r == ':' })
	for i := 0; i < len(fields); i++ {
		n, err := strconv.Atoi(fields[i])
		switch {
		case err != nil, n == 8:
			return true
		case n == 38 || n == 48 || n == 58: // a colour by number: what follows are its parts
			if i+1 < len(fields) && fields[i+1] == "5" {
				i += 2
			} else {
				i += 4
			}
		}
	}
	return false
}

// stripColours removes colour sequences, for a reader that shows none.
func stripColours(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			if n, _ := sgr([]byte(s[i:min(len(s), i+maxSGR)])); n > 0 {
				i += n
				continue
			}
		}
		b.WriteByte(s[i])
		i++
	}
	return b.String()
}

// A painter shows a picture inside a terminal; nil when the terminal cannot.
type painter func(w io.Writer, name string, png []byte) error

// painterOf asks the environment what the terminal can show.
func painterOf(getenv func(string) string) painter {
	switch {
	case getenv("TMUX") != "" || strings.HasPrefix(getenv("TERM"), "screen"):
		return nil // they pass neither protocol on by default
	case getenv("TERM") == "xterm-kitty", getenv("KITTY_WINDOW_ID") != "", getenv("TERM_PROGRAM") == "ghostty":
		return paintKitty
	case getenv("TERM_PROGRAM") == "iTerm.app", getenv("TERM_PROGRAM") == "WezTerm":
		return paintITerm
	}
	return nil
}

func paintITerm(w io.Writer, name string, png []byte) error {
	_, err := fmt.Fprintf(w, "\x1b]1337;File=name=%s;size=%d;inline=1:%s\x07\n",
		base64.StdEncoding.EncodeToString([]byte(name)), len(png), base64.StdEncoding.EncodeToString(png))
	return err
}

// paintKitty sends a picture in pieces of 4096 characters, as its protocol asks.
func paintKitty(w io.Writer, _ string, png []byte) error {
	data := base64.StdEncoding.EncodeToString(png)
	for first := true; first || data != ""; first = false {
		piece := data[:min(4096, len(data))]
		data = data[len(piece):]
		keys, more := "", 0
		if first {
			keys = "a=T,f=100,"
		}
		if data != "" {
			more = 1
		}
		if _, err := fmt.Fprintf(w, "\x1b_G%sm=%d;%s\x1b\\", keys, more, piece); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "\n")
	return err
}
