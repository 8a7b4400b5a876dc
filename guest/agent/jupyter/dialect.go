package jupyter

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// execute is the content of an execute_request. Kernels ignore what they do not
// know, so what concerns our own additions travels beside the code.
type execute struct {
	Code        string            `json:"code"`
	Silent      bool              `json:"silent"`
	History     bool              `json:"store_history"`
	Expressions map[string]string `json:"user_expressions"`
	AllowStdin  bool              `json:"allow_stdin"`
	StopOnError bool              `json:"stop_on_error"`
	Arenero     *extra            `json:"arenero,omitempty"`
}

type extra struct {
	Env    map[string]string `json:"env,omitempty"`
	Script *extraScript      `json:"script,omitempty"`
	Seed   *extraSeed        `json:"seed,omitempty"`
}

type extraScript struct {
	File  string   `json:"file"`
	Args  []string `json:"args"`
	Stdin string   `json:"stdin"` // base64
	Code  string   `json:"code"`
}

type extraSeed struct {
	Entropy string            `json:"entropy"` // hex
	Env     map[string]string `json:"env"`
	Dir     string            `json:"dir"`
}

// A dialect is how a language does what the protocol has no word for. files are
// written to the session's folder for the time of the cell.
type dialect struct {
	script func(s *session, e arenero.Execute, id string) (code string, files map[string][]byte)
	reseed func(seed Seed) string
	settle string // gives back memory; "" is nothing to do
	extras bool   // reads what stands under "arenero" in a request
}

// dialect finds the way of a language; a language that has none runs scripts as
// cells and cannot be reseeded.
func (s *session) dialect() dialect {
	switch s.spec.Language {
	case "python":
		return dialect{
			script: func(*session, arenero.Execute, string) (string, map[string][]byte) {
				return "__import__('_arenero').script()", nil
			},
			reseed: func(Seed) string { return "__import__('_arenero').wake()" },
			settle: "__import__('_arenero').settle()",
			extras: true,
		}
	case "bash":
		return dialect{script: bashScript, reseed: bashReseed, extras: s.spec.ours}
	}
	return dialect{}
}

// bashQuote makes one word of any text without NUL.
func bashQuote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "\x00", ""), "'", `'\''`) + "'"
}

// maxArgument is less than the kernel's bound of one argument of a process.
const maxArgument = 100 << 10

// bashScript runs the code in a bash of its own, as a script's is. What fits an
// argument is given as one: then $0, and the name in bash's own messages, are the
// script's. More goes through a file, whose first line sets $0 where the #! stands
// if there is one, so that lines keep their numbers.
func bashScript(s *session, e arenero.Execute, id string) (string, map[string][]byte) {
	files := map[string][]byte{id + ".in": e.Script.Stdin}
	name := bashQuote(e.Script.File)
	words := []string{"bash", "-c", bashQuote(e.Code), name}
	if len(e.Code) > maxArgument {
		code := e.Code
		if strings.HasPrefix(code, "#!") {
			_, rest, _ := strings.Cut(code, "\n")
			code = "\n" + rest
		}
		files[id+".sh"] = []byte("BASH_ARGV0=" + name + "; " + code)
		words = []string{"bash", bashQuote(filepath.Join(s.dir, id+".sh"))}
	}
	for _, a := range e.Script.Args {
		words = append(words, bashQuote(a))
	}
	words = append(words, "<", bashQuote(filepath.Join(s.dir, id+".in")))
	return strings.Join(words, " "), files
}

func bashReseed(seed Seed) string {
	var b strings.Builder
	n := uint32(0)
	for _, c := range seed.Entropy {
		n = n*16777619 ^ uint32(c)
	}
	fmt.Fprintf(&b, "RANDOM=%d\n", n&0x7fffffff)
	names := make([]string, 0, len(seed.Env))
	for k := range seed.Env {
		if bashName(k) {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	for _, k := range names {
		fmt.Fprintf(&b, "export %s=%s\n", k, bashQuote(seed.Env[k]))
	}
	if seed.Dir != "" {
		fmt.Fprintf(&b, "cd -- %s\n", bashQuote(seed.Dir))
	}
	return b.String()
}

func bashName(s string) bool {
	for i, r := range s {
		if !(r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9') {
			return false
		}
	}
	return s != ""
}

// content makes the request for a cell. undo removes the files it needed.
func (s *session) content(e arenero.Execute, stdin bool) (_ execute, undo func(), err error) {
	d := s.dialect()
	undo = func() {}
	x := execute{
		Code: e.Code, Silent: e.Silent, History: !e.Silent && e.Script == nil,
		Expressions: map[string]string{}, AllowStdin: stdin,
	}
	if len(e.Env) > 0 {
		if !d.extras {
			return x, undo, arenero.Errorf(arenero.Invalid, "execute", s.name,
				"a %s kernel takes no environment for one cell", s.spec.Language).
				WithHint("give it when the kernel is started")
		}
		x.Arenero = &extra{Env: e.Env}
	}
	if e.Script == nil || d.script == nil {
		return x, undo, nil
	}
	if x.Arenero == nil {
		x.Arenero = &extra{}
	}
	file := e.Script.File
	if file == "" {
		file = "<stdin>"
	}
	e.Script.File = file
	if s.spec.Language == "python" {
		args := e.Script.Args
		if args == nil {
			args = []string{}
		}
		x.Arenero.Script = &extraScript{
			File: file, Args: args, Code: e.Code, Stdin: base64.StdEncoding.EncodeToString(e.Script.Stdin),
		}
	}
	id := newID()
	code, files := d.script(s, e, id)
	x.Code = code
	undo = func() {
		for name := range files {
			os.Remove(filepath.Join(s.dir, name))
		}
	}
	for name, b := range files {
		// The folder is the user's: the name is random and must be new, so that no
		// link of theirs is followed.
		f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			undo()
			return x, func() {}, arenero.Errorf(arenero.Unavailable, "execute", s.name, "write the script: %w", err)
		}
		_, err = f.Write(b)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			undo()
			return x, func() {}, arenero.Errorf(arenero.Unavailable, "execute", s.name, "write the script: %w", err)
		}
	}
	return x, undo, nil
}

// reseedTimeout is how long a kernel may take to wake or to settle; one that takes longer is
// unusable.
const reseedTimeout = 10 * time.Second

func (k *kernel) reseed(ctx context.Context, seed Seed) error {
	const op = "reseed kernel"
	s, err := k.live(op)
	if err != nil {
		return nil //nolint:nilerr // a dead kernel has nothing to share
	}
	if len(seed.Entropy) < 32 {
		return arenero.Errorf(arenero.Invalid, op, k.name, "%d bytes of entropy, at least 32 are needed", len(seed.Entropy))
	}
	d := s.dialect()
	if d.reseed == nil {
		return nil
	}
	env := seed.Env
	if env == nil {
		env = map[string]string{}
	}
	err = k.quietly(ctx, op, s, d.reseed(seed), &extra{
		Seed: &extraSeed{Entropy: hex.EncodeToString(seed.Entropy), Env: env, Dir: seed.Dir},
	})
	if err != nil {
		return err
	}
	if seed.Dir != "" {
		k.mu.Lock()
		k.dir = seed.Dir
		k.mu.Unlock()
	}
	return nil
}

// settle lets a kernel give back what memory it can. It is called of a kernel
// that runs nothing.
func (k *kernel) settle(ctx context.Context) error {
	const op = "settle kernel"
	s, err := k.live(op)
	if err != nil {
		return nil //nolint:nilerr // a dead kernel has given back all
	}
	if code := s.dialect().settle; code != "" {
		return k.quietly(ctx, op, s, code, nil)
	}
	return nil
}

// quietly runs code of ours, of which no trace is left.
func (k *kernel) quietly(ctx context.Context, op string, s *session, code string, x *extra) error {
	ctx, cancel := context.WithTimeout(ctx, reseedTimeout)
	defer cancel()
	m, err := s.request(ctx, s.shell, "execute_request", execute{
		Code: code, Silent: true, Expressions: map[string]string{}, Arenero: x,
	})
	if err != nil {
		return err
	}
	var r struct {
		Status string `json:"status"`
		Name   string `json:"ename"`
		Value  string `json:"evalue"`
	}
	if err := json.Unmarshal(m.content, &r); err != nil || r.Status != "ok" {
		return arenero.Errorf(arenero.Internal, op, k.name, "the kernel refused: %.200q %.200q", r.Name, r.Value)
	}
	return nil
}
