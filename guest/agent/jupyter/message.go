package jupyter

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"strconv"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Messages of the Jupyter protocol, version 5.3: the parts of
// [idents..., "<IDS|MSG>", signature, header, parent, metadata, content, buffers...].

var delimiter = []byte("<IDS|MSG>")

var (
	errNoDelimiter = errors.New("a message without its delimiter")
	errShort       = errors.New("a message of too few parts")
	errSignature   = errors.New("a message with a wrong signature")
)

type header struct {
	ID       string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Type     string `json:"msg_type"`
	Version  string `json:"version"`
}

// A message is one verified message of a kernel. Content is nil if it was too
// large; dropped then says how large.
type message struct {
	kind    string // msg_type
	parent  string // msg_id of the request it answers
	session string // of that request
	content json.RawMessage
	dropped uint64
}

// A signer signs and checks messages with the key of one kernel.
type signer struct {
	mu  sync.Mutex
	mac hash.Hash
}

func newSigner(key string) *signer {
	return &signer{mac: hmac.New(sha256.New, []byte(key))}
}

// sum is the signature in hex.
func (s *signer) sum(parts ...[]byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mac.Reset()
	for _, p := range parts {
		s.mac.Write(p)
	}
	var raw [sha256.Size]byte
	return hex.AppendEncode(nil, s.mac.Sum(raw[:0]))
}

// encode makes the frames of a request and returns them with its id.
func (s *signer) encode(kind, session string, content any) (id string, frames [][]byte, err error) {
	id = newID()
	body, err := json.Marshal(content)
	if err != nil {
		return "", nil, err
	}
	head, err := json.Marshal(header{
		ID: id, Session: session, Username: "arenero", Type: kind, Version: "5.3",
		Date: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
	})
	if err != nil {
		return "", nil, err
	}
	empty := []byte("{}")
	return id, [][]byte{delimiter, s.sum(head, empty, empty, body), head, empty, empty, body}, nil
}

// decode checks and reads the frames of a message.
func (s *signer) decode(z zmessage) (message, error) {
	i := 0
	for i < len(z.frames) && !bytes.Equal(z.frames[i], delimiter) {
		i++
	}
	if i == len(z.frames) {
		return message{}, errNoDelimiter
	}
	parts := z.frames[i+1:]
	if len(parts) < 5 {
		return message{}, errShort
	}
	// What was too large to keep cannot be checked. Its parent still says whom to
	// tell, and no content of it is used.
	if z.dropped == 0 && !hmac.Equal(parts[0], s.sum(parts[1:5]...)) {
		return message{}, errSignature
	}
	var head, parent struct {
		ID      string `json:"msg_id"`
		Session string `json:"session"`
		Type    string `json:"msg_type"`
	}
	if err := json.Unmarshal(parts[1], &head); err != nil {
		return message{}, err
	}
	if err := json.Unmarshal(parts[2], &parent); err != nil {
		return message{}, err
	}
	m := message{kind: head.Type, parent: parent.ID, session: parent.Session, dropped: z.dropped}
	if z.dropped == 0 {
		m.content = parts[4]
	}
	return m, nil
}

// newID is 128 random bits in hex.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// unquote decodes a JSON string into bytes. Unlike encoding/json it loses nothing:
// bytes that are not UTF-8 stay as they are, and Python's surrogate escapes
// (\udc80 to \udcff, what it makes of bytes it could not decode) become the bytes
// they stand for. ok is false if b is not a JSON string.
func unquote(b []byte) (out []byte, ok bool) {
	b = bytes.TrimSpace(b)
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return nil, false
	}
	b = b[1 : len(b)-1]
	i := bytes.IndexByte(b, '\\')
	if i < 0 {
		return b, bytes.IndexByte(b, '"') < 0
	}
	out = make([]byte, 0, len(b))
	for {
		out = append(out, b[:i]...)
		b = b[i:]
		var n int
		if out, n = unescape(out, b); n == 0 {
			return nil, false
		}
		b = b[n:]
		if i = bytes.IndexByte(b, '\\'); i < 0 {
			return append(out, b...), true
		}
	}
}

// unescape appends what the escape at the start of b stands for and returns how
// long it is; 0 if it is none.
func unescape(out, b []byte) ([]byte, int) {
	if len(b) < 2 {
		return out, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return append(out, b[1]), 2
	case 'b':
		return append(out, '\b'), 2
	case 'f':
		return append(out, '\f'), 2
	case 'n':
		return append(out, '\n'), 2
	case 'r':
		return append(out, '\r'), 2
	case 't':
		return append(out, '\t'), 2
	case 'u':
		r, ok := hex4(b[2:])
		if !ok {
			return out, 0
		}
		if !utf16.IsSurrogate(r) {
			return utf8.AppendRune(out, r), 6
		}
		if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
			if low, ok := hex4(b[8:]); ok {
				if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
					return utf8.AppendRune(out, full), 12
				}
			}
		}
		if r >= 0xdc80 && r <= 0xdcff {
			return append(out, byte(r)), 6
		}
		return utf8.AppendRune(out, utf8.RuneError), 6
	}
	return out, 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n), err == nil
}
