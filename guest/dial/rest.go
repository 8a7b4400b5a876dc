package dial

import (
	"strings"
	"unicode/utf8"
)

// rest carries the bytes of a character that was cut between two messages.
type rest struct{ held []byte }

// text returns what is whole; bytes that can never be part of a character are
// replaced.
func (r *rest) text(b []byte) string {
	if len(r.held) > 0 {
		b = append(r.held, b...)
		r.held = nil
	}
	end := len(b)
	// At most the last three bytes can be the start of a character.
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		c := b[len(b)-i]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
			end = len(b) - i
			r.held = append([]byte(nil), b[end:]...)
		}
		break
	}
	return strings.ToValidUTF8(string(b[:end]), "\uFFFD")
}
