package host

import (
	"crypto/rand"
	"encoding/base32"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
)

// complete fills in defaults and refuses what can never be.
func (h *Host) complete(s arenero.Spec) (arenero.Spec, error) {
	const op = "create sandbox"
	orDefault(&s.Engine, h.DefaultEngine)
	orDefault(&s.Lifetime, h.Lifetime)
	orDefault(&s.Idle, h.Idle)
	orDefault(&s.OnTimeout, arenero.KillOnTimeout)
	s.Limits = s.Limits.WithDefaults()
	if err := s.Limits.Validate(); err != nil {
		return s, err
	}
	if s.Lifetime < time.Second || s.Lifetime > h.MaxLifetime {
		return s, arenero.Errorf(arenero.Invalid, op, "", "lifetime is %v, must be between 1s and %v", s.Lifetime, h.MaxLifetime)
	}
	if s.Hostname != "" && !isLabel(s.Hostname) {
		return s, arenero.Errorf(arenero.Invalid, op, "", "hostname must be 1 to 63 of a-z, 0-9 and '-', not at an end")
	}
	if s.OnTimeout != arenero.KillOnTimeout && s.OnTimeout != arenero.PauseOnTimeout {
		return s, arenero.Errorf(arenero.Invalid, op, "", "on_timeout is %q, must be kill or pause", clip(string(s.OnTimeout), 32))
	}
	if s.Wait < 0 || s.Wait > maxWait {
		return s, arenero.Errorf(arenero.Invalid, op, "", "wait is %v, must be between 0 and %v", s.Wait, maxWait)
	}
	if s.Idle > h.MaxLifetime {
		return s, arenero.Errorf(arenero.Invalid, op, "", "idle is %v, must be at most %v", s.Idle, h.MaxLifetime)
	}
	if err := CheckEnv(s.Env); err != nil {
		return s, err
	}
	if err := checkMounts(s.Volumes); err != nil {
		return s, err
	}
	if err := checkLabels(s.Labels); err != nil {
		return s, err
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	return s, nil
}

func checkLabels(labels map[string]string) error {
	const op = "check labels"
	if len(labels) > 64 {
		return arenero.Errorf(arenero.Invalid, op, "", "%d labels, at most 64", len(labels))
	}
	for k, v := range labels {
		if k == "" || len(k) > 128 || len(v) > 1024 || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return arenero.Errorf(arenero.Invalid, op, "", "label %q: names are 1 to 128 bytes, values at most 1024, both UTF-8", clip(k, 128))
		}
	}
	return nil
}

// CheckEnv refuses variables that no process could be given.
func CheckEnv(env map[string]string) error {
	bad := func(format string, args ...any) error {
		return arenero.Errorf(arenero.Invalid, "check environment", "", format, args...)
	}
	if len(env) > 512 {
		return bad("%d variables, at most 512", len(env))
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k):
			return bad("%q is not a name of a variable", clip(k, 64))
		case strings.Contains(v, "\x00") || !utf8.ValidString(v):
			return bad("the value of %q has a NUL byte or is not UTF-8", clip(k, 64))
		}
	}
	if int64(total) > 128*arenero.KiB {
		return bad("%d bytes together, at most 128 KiB", total)
	}
	return nil
}

// NewID makes the id of a sandbox: nobody guesses 130 random bits.
func NewID() string { return "sbx-" + randomText(26) }

// randomText returns n random characters of base32, five bits each.
func randomText(n int) string {
	raw := make([]byte, n*5/8+1)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(raw))[:n]
}

func entropy() []byte {
	e := make([]byte, 64)
	_, _ = rand.Read(e) // likewise
	return e
}

func userOf(img arenero.Image) arenero.User {
	if img.User.Name == "" {
		return arenero.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}
	}
	return img.User
}

func workdirOf(img arenero.Image) string {
	if img.Workdir == "" {
		return "/workspace"
	}
	return img.Workdir
}

func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-') {
			return false
		}
	}
	return true
}

// clip cuts a string to n bytes, at a border of characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// printable makes words of a guest or of an engine fit for a log line or a
// message: control characters and broken UTF-8 become escapes.
func printable(s string) string {
	var b strings.Builder
	for _, r := range clip(s, 2048) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			b.WriteByte('?')
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (h *Host) engineNames() []string {
	names := make([]string, 0, len(h.Engines))
	for n := range h.Engines {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// newBoxID names a new box of a sandbox. Boxes of one sandbox have names of their
// own: while it is rolled back, two exist.
func newBoxID(sandbox string) string {
	return "box-" + sandbox[len("sbx-"):len("sbx-")+8] + "-" + randomText(10)
}
