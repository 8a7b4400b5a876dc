package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/arenero/arenero/client"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is shown below the flags.
func (*completionCmd) Help() string {
	return `Prints what a shell needs to complete verbs, flags and the ids of sandboxes with the tab key. In ~/.bashrc or ~/.zshrc:

  source <(arenero completion bash)
  source <(arenero completion zsh)

In ~/.config/fish/config.fish:

  arenero completion fish | source`
}

// Run prints the code. The library ends with kong's exit, which is ours to catch.
func (v *completionCmd) Run(k *kong.Context) (err error) {
	defer catch(&err)
	return (&kongcompletion.Completion{Shell: v.Shell, Code: true}).Run(k)
}

// completed answers a shell that asks how a line may go on, which it does by
// calling us with the line in the environment. It says whether that was so.
func completed(p *kong.Kong) (asked bool, err error) {
	if os.Getenv("COMP_LINE") == "" {
		return false, nil
	}
	asked = true
	defer catch(&err)
	kongcompletion.Register(p, kongcompletion.WithPredictor("sandbox", complete.PredictFunc(idsFor)))
	return asked, nil
}

// catch turns kong's exit into a value.
func catch(err *error) {
	r := recover()
	if r == nil {
		return
	}
	s, ok := r.(status)
	if !ok {
		panic(r)
	}
	if s != 0 {
		*err = s
	}
}

// idsFor names the sandboxes of the server, if there is one that answers soon: a
// person waits. The server's address is the environment's.
func idsFor(a complete.Args) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	data := getenv("ARENERO_DATA")
	if data == "" {
		data = defaultData()
	}
	r := remote{URL: client.FromEnv().URL}
	var out []string
	for sb, err := range r.client(&cli{Data: data}).List(ctx) {
		if err != nil {
			break
		}
		if strings.HasPrefix(sb.ID(), a.Last) {
			out = append(out, printable(sb.ID()))
		}
	}
	return out
}
