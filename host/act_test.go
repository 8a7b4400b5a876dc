package host_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
	"github.com/arenero/arenero/store"
)

// A request with an idempotency key is done once, however often and from however
// many sides it comes.
func TestActOnce(t *testing.T) {
	p := newParts(t)
	h, shut := p.open(t, host.Config{})
	ctx := context.Background()
	var ran atomic.Int32
	work := func(context.Context) ([]byte, error) {
		ran.Add(1)
		time.Sleep(50 * time.Millisecond)
		return []byte(`"done"`), nil
	}
	var all sync.WaitGroup
	var fresh atomic.Int32
	for range 8 {
		all.Go(func() {
			answer, again, err := h.Act(ctx, host.Local(), "k", []byte("r"), work)
			if err != nil || string(answer) != `"done"` {
				t.Errorf("%s %v", answer, err)
			}
			if !again {
				fresh.Add(1)
			}
		})
	}
	all.Wait()
	if ran.Load() != 1 || fresh.Load() != 1 {
		t.Errorf("it ran %d times, %d said that it was the first", ran.Load(), fresh.Load())
	}
	if _, _, err := h.Act(ctx, host.Local(), "k", []byte("another"), work); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("another request with the key: %v", err)
	}
	if _, again, err := h.Act(ctx, host.Who{Tenant: "other", Key: "x"}, "k", []byte("r"), work); err != nil || again {
		t.Errorf("another tenant's key of the same name: %v %v", again, err)
	}

	// One that fails may be tried again; one whose caller goes away goes on.
	bad := errors.New("no")
	if _, _, err := h.Act(ctx, host.Local(), "f", nil, func(context.Context) ([]byte, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
	if _, again, err := h.Act(ctx, host.Local(), "f", nil, work); err != nil || again {
		t.Errorf("after a failure: %v %v", again, err)
	}
	short, cancel := context.WithCancel(ctx)
	ran.Store(0)
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, _, err := h.Act(short, host.Local(), "g", nil, work); arenero.CodeOf(err) != arenero.Canceled {
		t.Errorf("a caller that goes away: %v", err)
	}
	if answer, again, err := h.Act(ctx, host.Local(), "g", nil, work); err != nil || !again || string(answer) != `"done"` || ran.Load() != 1 {
		t.Errorf("when it comes back: %s %v %v, ran %d times", answer, again, err, ran.Load())
	}
	shut()

	// A crash in the middle: whether it was done is not known, so it is not done
	// again.
	db, err := store.Open(p.data)
	if err != nil {
		t.Fatal(err)
	}
	if _, begun, err := db.BeginAct(ctx, store.Act{Tenant: "default", Key: "crash", Hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", At: time.Now()}); err != nil || !begun {
		t.Fatal(begun, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	h, _ = p.open(t, host.Config{})
	if _, _, err := h.Act(ctx, host.Local(), "crash", nil, work); arenero.CodeOf(err) != arenero.Conflict {
		t.Errorf("after a crash: %v", err)
	}
	if answer, again, err := h.Act(ctx, host.Local(), "k", []byte("r"), work); err != nil || !again || string(answer) != `"done"` {
		t.Errorf("after a restart: %s %v %v", answer, again, err)
	}
}

// A machine that is full lets people wait, and the tenants take turns.
func TestQueue(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{MaxSandboxes: 1})
	ctx := context.Background()
	who := map[string]host.Who{}
	for _, tenant := range []string{"many", "one"} {
		secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		if who[tenant], err = h.Authenticate(ctx, secret); err != nil {
			t.Fatal(err)
		}
	}
	first := create(t, h, arenero.Spec{})
	start := time.Now()
	if _, err := h.Create(ctx, who["one"], arenero.Spec{Wait: 200 * time.Millisecond}); arenero.CodeOf(err) != arenero.Exhausted || time.Since(start) < 200*time.Millisecond {
		t.Errorf("who waits in vain: %v after %v", err, time.Since(start))
	}
	made := make(chan string, 10)
	var all sync.WaitGroup
	wait := func(tenant string) {
		all.Go(func() {
			sb, err := h.Create(ctx, who[tenant], arenero.Spec{Wait: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			made <- tenant
			if err := h.Kill(ctx, who[tenant], sb.ID); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Millisecond) // they come one after another
	}
	for range 4 {
		wait("many")
	}
	wait("one")
	if err := h.Kill(ctx, host.Local(), first.ID); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	close(made)
	var order []string
	for tenant := range made {
		order = append(order, tenant)
	}
	if len(order) != 5 || order[0] != "many" || order[1] != "one" {
		t.Errorf("they came in the order %v", order)
	}
}

func TestRate(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	ctx := context.Background()
	secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "t", Ceilings: host.Ceilings{Creates: 1, Engine: "local"}})
	if err != nil {
		t.Fatal(err)
	}
	who, err := h.Authenticate(ctx, secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(ctx, who, arenero.Spec{}); err != nil {
		t.Fatal(err)
	}
	_, err = h.Create(ctx, who, arenero.Spec{})
	if arenero.CodeOf(err) != arenero.Exhausted || arenero.WaitOf(err) < time.Second || arenero.WaitOf(err) > time.Minute {
		t.Errorf("%v, wait %v", err, arenero.WaitOf(err))
	}
}

// An admin of a tenant has a say in that tenant alone.
func TestTenantAdmin(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	ctx := context.Background()
	secret, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "t", Scopes: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := h.Authenticate(ctx, secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.MakeKey(ctx, admin, host.Key{Tenant: "t"}); err != nil {
		t.Error(err)
	}
	if _, err := h.MakeKey(ctx, admin, host.Key{Tenant: "other"}); arenero.CodeOf(err) != arenero.Denied {
		t.Errorf("a key of another tenant: %v", err)
	}
	all, err := h.Keys(ctx, host.Local())
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	other, err := h.MakeKey(ctx, host.Local(), host.Key{Tenant: "other"})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := h.Authenticate(ctx, other)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RevokeKey(ctx, admin, theirs.Key); arenero.CodeOf(err) != arenero.NotFound {
		t.Errorf("revoke of another tenant's key: %v", err)
	}
	if mine, err := h.Keys(ctx, admin); err != nil || len(mine) != 2 {
		t.Errorf("%v %v", mine, err)
	}
	if err := h.SetPool(ctx, admin, arenero.Pool{Image: "python", Max: 1}); arenero.CodeOf(err) != arenero.Denied {
		t.Errorf("pool: %v", err)
	}
	if _, err := h.Backup(ctx, admin); arenero.CodeOf(err) != arenero.Denied {
		t.Errorf("backup: %v", err)
	}
}

// What happens is told in order, to its owner alone, and can be waited for.
func TestEvents(t *testing.T) {
	h, _ := newParts(t).open(t, host.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	sb := create(t, h, arenero.Spec{})
	told := make(chan []arenero.Event, 1)
	go func() {
		all, err := h.Events(ctx, host.Local(), sb.ID, 2, 0, true) // after creating and running
		if err != nil {
			t.Error(err)
		}
		told <- all
	}()
	if _, err := sh(t, guestOf(t, h, sb.ID), "exit 3", 0); err != nil {
		t.Fatal(err)
	}
	select {
	case all := <-told:
		if len(all) != 1 || all[0].Kind != "process" || all[0].Detail["exit_reason"] != "exited" || all[0].Seq <= 2 {
			t.Errorf("%+v", all)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was told")
	}
	if err := h.Kill(ctx, host.Local(), sb.ID); err != nil {
		t.Fatal(err)
	}
	all, err := h.Events(ctx, host.Local(), "", 0, 0, false)
	if err != nil || len(all) != 5 || all[0].State != arenero.Creating || all[4].State != arenero.Killed {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := h.Events(ctx, host.Who{Tenant: "other", Key: "x"}, "", 0, 0, false); err == nil && len(all) > 0 {
		t.Errorf("another tenant hears %+v", all)
	}
}
