package store

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func sandbox(id string, at time.Time) Row {
	return Row{Box: "box-" + id, StateID: "hib-1", Digest: "sha256:d", Sandbox: arenero.Sandbox{
		ID: id, State: arenero.Creating, Image: "python", Engine: "gvisor", Tenant: "default",
		Limits: arenero.DefaultLimits(), Labels: map[string]string{"a": "b"}, Created: at, Ends: at.Add(time.Hour),
		Hostname: "h", Lifetime: arenero.Seconds(time.Hour), Idle: arenero.Seconds(time.Minute), OnTimeout: arenero.PauseOnTimeout,
		Parent: "sbx-0", Snapshot: "snap-0", Volumes: []arenero.VolumeMount{{Name: "v", Path: "/v", ReadOnly: true}},
	}}
}

func TestSandboxKeepsEveryField(t *testing.T) {
	ctx := context.Background()
	at := time.Now().UTC()
	for name, open := range map[string]func(*testing.T) *Store{
		"file": func(t *testing.T) *Store { return open(t, t.TempDir()) },
		"memory": func(t *testing.T) *Store {
			s, err := Memory()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			want := sandbox("sbx-1", at)
			want.Limits.Timeout = 7 * time.Second
			if err := s.AddSandbox(ctx, want); err != nil {
				t.Fatal(err)
			}
			if err := s.AddSandbox(ctx, want); arenero.CodeOf(err) != arenero.Conflict {
				t.Errorf("same id twice: %v", err)
			}
			if err := s.MoveSandbox(ctx, want.ID, arenero.Creating, Change{To: arenero.Running, At: at, From: "boot", FromWhy: "cold", Box: "box-2", StateID: "-"}); err != nil {
				t.Fatal(err)
			}
			want.State, want.From, want.FromWhy, want.Box, want.StateID = arenero.Running, "boot", "cold", "box-2", ""
			got, err := s.Sandbox(ctx, want.ID)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestMoveAsksForTheStateItKnows(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	if err := s.AddSandbox(ctx, sandbox("sbx-1", time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := s.MoveSandbox(ctx, "sbx-1", arenero.Running, Change{To: arenero.Killing}); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("wrong state: %v", err)
	}
	if err := s.MoveSandbox(ctx, "sbx-2", arenero.Running, Change{To: arenero.Killing}); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("no such: %v", err)
	}
	if got, _ := s.Sandbox(ctx, "sbx-1"); got.State != arenero.Creating {
		t.Errorf("state is %s", got.State)
	}
}

func TestListPagesAndForgets(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	at := time.Now()
	for _, id := range []string{"sbx-c", "sbx-a", "sbx-b"} {
		if err := s.AddSandbox(ctx, sandbox(id, at)); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(f Filter) (out []string) {
		t.Helper()
		all, err := s.Sandboxes(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range all {
			out = append(out, sb.ID)
		}
		return out
	}
	if d := cmp.Diff([]string{"sbx-c", "sbx-a"}, ids(Filter{Limit: 2})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"sbx-b"}, ids(Filter{Limit: 2, After: "sbx-a", Tenant: "default"})); d != "" {
		t.Error(d)
	}
	if got := ids(Filter{Tenant: "other"}); got != nil {
		t.Error(got)
	}
	if err := s.MoveSandbox(ctx, "sbx-a", arenero.Creating, Change{To: arenero.Failed, At: at}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"sbx-a"}, ids(Filter{States: []arenero.State{arenero.Failed, arenero.Killed}, Image: "python"})); d != "" {
		t.Error(d)
	}
	if n, err := s.ForgetSandboxes(ctx, at.Add(time.Second)); n != 1 || err != nil {
		t.Errorf("forgot %d, %v", n, err)
	}
	if d := cmp.Diff([]string{"sbx-c", "sbx-b"}, ids(Filter{})); d != "" {
		t.Error(d)
	}
}

func TestKeys(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := open(t, dir)
	at := time.Now().UTC()
	want := Key{
		ID: "abc", Name: "n", Hash: []byte{1, 2}, Tenant: "default", Scopes: []string{"run"},
		Ceilings: Ceilings{Sandboxes: 3}, Created: at, Expires: at.Add(time.Hour),
	}
	if err := s.AddKey(ctx, want); err != nil {
		t.Fatal(err)
	}
	if err := s.AddKey(ctx, want); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("same id twice: %v", err)
	}
	if err := s.TouchKey(ctx, "abc", at); err != nil {
		t.Fatal(err)
	}
	want.Used = at
	s.Close()
	s = open(t, dir) // it outlives the daemon
	got, err := s.Key(ctx, "abc")
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if all, err := s.Keys(ctx); len(all) != 1 || err != nil {
		t.Error(all, err)
	}
	if err := s.RemoveKey(ctx, "abc"); err != nil {
		t.Error(err)
	}
	if err := s.RemoveKey(ctx, "abc"); arenero.CodeOf(err) != arenero.NotFound {
		t.Error(err)
	}
	if _, err := s.Key(ctx, "abc"); arenero.CodeOf(err) != arenero.NotFound {
		t.Error(err)
	}
}

// A second daemon on the same folder refuses, also one of another process; after
// the first is gone, however it went, the folder is free.
func TestOneDaemonAtATime(t *testing.T) {
	if dir := os.Getenv("ARENERO_TEST_HOLD"); dir != "" {
		if _, err := Open(dir); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("held\n")
		time.Sleep(time.Hour)
	}
	dir := t.TempDir()
	s := open(t, dir)
	_, err := Open(dir)
	if arenero.CodeOf(err) != arenero.Conflict || arenero.HintOf(err) == "" {
		t.Errorf("second open: %v", err)
	}
	s.Close()

	c := exec.Command(os.Args[0], "-test.run=^TestOneDaemonAtATime$")
	c.Env = append(os.Environ(), "ARENERO_TEST_HOLD="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := out.Read(b); err != nil || string(b) != "held\n" {
		t.Fatalf("%q %v", b, err)
	}
	if _, err := Open(dir); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("open beside another process: %v", err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	open(t, dir)
}

func TestDamagedFileIsTold(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 200 {
		if err := s.AddSandbox(context.Background(), sandbox("sbx-"+time.Duration(i).String(), time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	path := filepath.Join(dir, "arenero.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 8192; i < len(b); i += 3 {
		b[i] ^= 0x5a
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); arenero.CodeOf(err) != arenero.Internal || arenero.HintOf(err) == "" {
		t.Errorf("damaged: %v", err)
	}
	if err := os.WriteFile(path, []byte("this is no data base, whatever its name says, not at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("opened a text as data base")
	}
}

func TestNewerFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.write.Exec("PRAGMA user_version = 999"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(dir); arenero.CodeOf(err) != arenero.Unavailable {
		t.Errorf("newer: %v", err)
	}
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
		var got string
		if err := s.write.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, want %q (%v)", pragma, got, want, err)
		}
	}
	if _, err := s.read.Exec("DELETE FROM keys"); err == nil {
		t.Error("a reader may write")
	}
	for _, f := range []string{"arenero.db", "arenero.db-wal", "lock"} {
		st, err := os.Stat(filepath.Join(dir, f))
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", f, st.Mode(), err)
		}
	}
}

func TestCanceledContext(t *testing.T) {
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Sandboxes(ctx, Filter{})
	if arenero.CodeOf(err) != arenero.Canceled || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
