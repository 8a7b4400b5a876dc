package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// keepActs is how long an idempotency key is remembered.
const keepActs = 24 * time.Hour

// acts are those under way, so that a retry waits for the first to end.
type acts struct {
	mu    sync.Mutex
	going map[[2]string]chan struct{}
}

// Act does what was asked for under an idempotency key, once: a retried request
// waits for the first one and gets its answer, which again says true. hash is of
// the whole request; the same key with another is a [arenero.Conflict]. An act
// that failed is forgotten and may be tried again.
//
// An answer that was lost in a crash of the daemon is a [arenero.Conflict] too:
// whether it was done is not known, and doing it twice is what the key forbids.
func (h *Host) Act(ctx context.Context, who Who, key string, request []byte, f func(ctx context.Context) (answer []byte, err error)) (answer []byte, again bool, err error) {
	const op = "act once"
	if key == "" {
		answer, err = f(ctx)
		return answer, false, err
	}
	if len(key) > 255 || !utf8.ValidString(key) {
		return nil, false, arenero.Errorf(arenero.Invalid, op, "", "an idempotency key is at most 255 bytes of UTF-8")
	}
	sum := sha256.Sum256(request)
	a := store.Act{Tenant: who.Tenant, Key: key, Hash: hex.EncodeToString(sum[:]), At: h.now()}
	for {
		done, first := h.acts.begin(who.Tenant, key)
		if !first {
			select {
			case <-done:
				continue // its answer is in the store
			case <-ctx.Done():
				return nil, false, arenero.Errorf(arenero.Canceled, op, "", "the caller went away")
			}
		}
		// It goes on when its caller goes away: the caller will come again.
		type end struct {
			answer []byte
			again  bool
			err    error
		}
		ended := make(chan end, 1)
		started := h.spawn(func() {
			defer h.acts.end(who.Tenant, key)
			var e end
			e.answer, e.again, e.err = h.actOnce(context.WithoutCancel(ctx), a, f)
			ended <- e
		})
		if !started {
			h.acts.end(who.Tenant, key)
			return nil, false, arenero.Errorf(arenero.Unavailable, op, "", "the daemon is stopping")
		}
		select {
		case e := <-ended:
			return e.answer, e.again, e.err
		case <-ctx.Done():
			return nil, false, arenero.Errorf(arenero.Canceled, op, "", "the caller went away; the request goes on under its key")
		}
	}
}

func (h *Host) actOnce(ctx context.Context, a store.Act, f func(context.Context) ([]byte, error)) ([]byte, bool, error) {
	const op = "act once"
	is, begun, err := h.store.BeginAct(ctx, a)
	if err != nil {
		return nil, false, err
	}
	if !begun {
		switch {
		case is.Hash != a.Hash:
			return nil, false, arenero.Errorf(arenero.Conflict, op, "", "the idempotency key was used for another request").
				WithHint("use a new key for a new request")
		case is.Answer == nil:
			return nil, false, arenero.Errorf(arenero.Conflict, op, "", "the request was begun before the daemon stopped, and its outcome is not known").
				WithHint("look what there is, and use a new key to do it again")
		}
		return is.Answer, true, nil
	}
	a.Answer, err = f(ctx)
	if err != nil {
		if derr := h.store.DropAct(ctx, a.Tenant, a.Key); derr != nil {
			h.log.Error("forget failed act", "err", derr)
		}
		return nil, false, err
	}
	if err := h.store.EndAct(ctx, a); err != nil {
		return nil, false, err
	}
	return a.Answer, false, nil
}

func (a *acts) begin(tenant, key string) (done <-chan struct{}, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.going[[2]string{tenant, key}]; c != nil {
		return c, false
	}
	if a.going == nil {
		a.going = map[[2]string]chan struct{}{}
	}
	a.going[[2]string{tenant, key}] = make(chan struct{})
	return nil, true
}

func (a *acts) end(tenant, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.going[[2]string{tenant, key}])
	delete(a.going, [2]string{tenant, key})
}
