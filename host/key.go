package host

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/store"
)

// A Scope is what a key may be used for.
type Scope string

// The scopes. Each includes what stands before it.
const (
	ScopeRead  Scope = "read"  // see what there is
	ScopeRun   Scope = "run"   // make, use and end sandboxes
	ScopeAdmin Scope = "admin" // keys and images
)

// Key is what is known of an API key.
type Key = store.Key

// Ceilings bound what the owner of a key may have.
type Ceilings = store.Ceilings

// Local is the one who asks from within this process: the CLI as the owner of
// the data folder. No key that comes over a door has this id.
func Local() Who { return Who{Tenant: "default", Key: "local"} }

// keyring remembers the keys that were used, so that a request costs no query.
type keyring struct {
	mu    sync.Mutex
	known map[string]*Key
}

// forget drops a key that was changed.
func (k *keyring) forget(id string) {
	k.mu.Lock()
	delete(k.known, id)
	k.mu.Unlock()
}

// Authenticate tells whose a secret is. [arenero.Unauthenticated] for one that is
// empty, unknown, or expired, all three alike.
func (h *Host) Authenticate(ctx context.Context, secret string) (Who, error) {
	no := arenero.Errorf(arenero.Unauthenticated, "check key", "", "no key, or not a valid one").
		WithHint("send the header Authorization: Bearer KEY; arenero key show prints the local key")
	id, ok := keyID(secret)
	if !ok {
		return Who{}, no
	}
	k, err := h.key(ctx, id)
	if arenero.CodeOf(err) == arenero.NotFound {
		return Who{}, no
	}
	if err != nil {
		return Who{}, err
	}
	sum := sha256.Sum256([]byte(secret))
	now := h.now()
	if subtle.ConstantTimeCompare(sum[:], k.Hash) != 1 || !k.Expires.IsZero() && now.After(k.Expires) {
		return Who{}, no
	}
	h.keys.mu.Lock()
	stale := now.Sub(k.Used) > time.Minute
	if stale {
		k.Used = now
	}
	h.keys.mu.Unlock()
	if stale {
		if err := h.store.TouchKey(ctx, id, now); err != nil && ctx.Err() == nil {
			h.log.Error("record use of key", "key", id, "err", err)
		}
	}
	return Who{Tenant: k.Tenant, Key: id}, nil
}

func (h *Host) key(ctx context.Context, id string) (*Key, error) {
	h.keys.mu.Lock()
	k := h.keys.known[id]
	h.keys.mu.Unlock()
	if k != nil {
		return k, nil
	}
	found, err := h.store.Key(ctx, id)
	if err != nil {
		return nil, err
	}
	h.keys.mu.Lock()
	defer h.keys.mu.Unlock()
	if h.keys.known == nil {
		h.keys.known = map[string]*Key{}
	}
	h.keys.known[id] = &found
	return &found, nil
}

// allow refuses what a key was not made for.
func (h *Host) allow(ctx context.Context, who Who, scope Scope, op string) error {
	if who == Local() {
		return nil
	}
	k, err := h.key(ctx, who.Key)
	if err != nil || k.Tenant != who.Tenant {
		return arenero.Errorf(arenero.Unauthenticated, op, "", "the key is not known any more")
	}
	order := []string{string(ScopeRead), string(ScopeRun), string(ScopeAdmin)}
	for _, have := range k.Scopes {
		if slices.Index(order, have) >= slices.Index(order, string(scope)) {
			return nil
		}
	}
	return arenero.Errorf(arenero.Denied, op, "", "this key has no scope %q", scope).
		WithHint("ask its owner for a key with this scope")
}

func (h *Host) ceilings(ctx context.Context, who Who) (store.Ceilings, error) {
	if who == Local() {
		return store.Ceilings{}, nil
	}
	k, err := h.key(ctx, who.Key)
	if err != nil {
		return store.Ceilings{}, err
	}
	return k.Ceilings, nil
}

// MakeKey makes a key and returns its secret, which is kept nowhere. Of k, the
// id, the hash and the times of making and use are ours to set.
func (h *Host) MakeKey(ctx context.Context, who Who, k Key) (string, error) {
	const op = "make key"
	if err := h.allow(ctx, who, ScopeAdmin, op); err != nil {
		return "", err
	}
	if k.Tenant != who.Tenant && !operator(who) {
		return "", arenero.Errorf(arenero.Denied, op, "", "this key may make keys of its own tenant only")
	}
	if c := k.Ceilings; c.Sandboxes < 0 || c.CPUs < 0 || c.Memory < 0 || c.Disk < 0 || c.Creates < 0 {
		return "", arenero.Errorf(arenero.Invalid, op, "", "a ceiling is below 0")
	}
	if c := k.Ceilings; c.Engine != "" && h.Engines[c.Engine] == nil {
		return "", arenero.Errorf(arenero.Invalid, op, "", "no engine %q", clip(c.Engine, 64))
	}
	if !isLabel(k.Tenant) {
		return "", arenero.Errorf(arenero.Invalid, op, "", "tenant must be 1 to 63 of a-z, 0-9 and '-'")
	}
	if len(k.Scopes) == 0 {
		k.Scopes = []string{string(ScopeRun)}
	}
	for _, s := range k.Scopes {
		if !slices.Contains([]Scope{ScopeRead, ScopeRun, ScopeAdmin}, Scope(s)) {
			return "", arenero.Errorf(arenero.Invalid, op, "", "unknown scope %q", clip(s, 32)).WithHint("use read, run or admin")
		}
	}
	secret := "arn_" + randomText(12) + "_" + randomText(52)
	return secret, h.addKey(ctx, k, secret)
}

func (h *Host) addKey(ctx context.Context, k Key, secret string) error {
	id, ok := keyID(secret)
	if !ok {
		return arenero.Errorf(arenero.Invalid, "add key", "", "it does not have the form of a key")
	}
	sum := sha256.Sum256([]byte(secret))
	k.ID, k.Hash, k.Created, k.Used = id, sum[:], h.now(), time.Time{}
	return h.store.AddKey(ctx, k)
}

// Keys lists all keys, for those who may have them.
func (h *Host) Keys(ctx context.Context, who Who) ([]Key, error) {
	if err := h.allow(ctx, who, ScopeAdmin, "list keys"); err != nil {
		return nil, err
	}
	all, err := h.store.Keys(ctx)
	if operator(who) {
		return all, err
	}
	return slices.DeleteFunc(all, func(k Key) bool { return k.Tenant != who.Tenant }), err
}

// operator says whether somebody speaks for the whole machine: an admin of the
// tenant that it was set up with. An admin of another tenant has a say in that
// tenant alone.
func operator(who Who) bool { return who.Tenant == Local().Tenant }

// operate refuses all but operators.
func (h *Host) operate(ctx context.Context, who Who, op string) error {
	if err := h.allow(ctx, who, ScopeAdmin, op); err != nil {
		return err
	}
	if !operator(who) {
		return arenero.Errorf(arenero.Denied, op, "", "only an operator of this machine may do that")
	}
	return nil
}

// RevokeKey makes a key worthless at once. [arenero.NotFound] when there is none.
func (h *Host) RevokeKey(ctx context.Context, who Who, id string) error {
	const op = "revoke key"
	if err := h.allow(ctx, who, ScopeAdmin, op); err != nil {
		return err
	}
	if k, err := h.store.Key(ctx, id); err != nil {
		return err
	} else if k.Tenant != who.Tenant && !operator(who) {
		return arenero.Errorf(arenero.NotFound, op, id, "no such key")
	}
	err := h.store.RemoveKey(ctx, id)
	h.keys.forget(id)
	return err
}

// LocalKey returns the secret in a file, made at the first start with all scopes
// of the tenant "default". The file is readable by its owner only; one that
// others can read is refused. made says whether it is new.
func (h *Host) LocalKey(ctx context.Context, path string) (secret string, made bool, err error) {
	const op = "read local key"
	secret, err = ReadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, made = "arn_"+randomText(12)+"_"+randomText(52), true
		if err := writeKey(path, secret); err != nil {
			return "", false, arenero.Errorf(arenero.Unavailable, "write local key", path, "%w", err)
		}
		err = nil
	}
	if err != nil {
		return "", false, err
	}
	id, _ := keyID(secret)
	if _, err := h.store.Key(ctx, id); arenero.CodeOf(err) == arenero.NotFound {
		k := Key{Name: "local", Tenant: "default", Scopes: []string{string(ScopeAdmin)}}
		if err := h.addKey(ctx, k, secret); err != nil {
			return "", false, err
		}
	} else if err != nil {
		return "", false, err
	}
	if _, err := h.Authenticate(ctx, secret); err != nil {
		return "", false, arenero.Errorf(arenero.Conflict, op, path, "%w", err).
			WithHint("the file does not hold the key it was made with; remove it and start again")
	}
	return secret, made, nil
}

// ReadKey returns the secret in a file that only its owner can read. The error
// wraps fs.ErrNotExist when there is none.
func ReadKey(path string) (string, error) {
	const op = "read local key"
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		code := arenero.Unavailable
		if errors.Is(err, fs.ErrNotExist) {
			code = arenero.NotFound
		}
		return "", arenero.Errorf(code, op, path, "%w", err).WithHint("arenero serve makes it at its first start")
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", arenero.Errorf(arenero.Unavailable, op, path, "%w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", arenero.Errorf(arenero.Denied, op, path, "others can read it (mode %04o)", st.Mode().Perm()).
			WithHint("chmod 600 %s, or remove it to get a new key", path)
	}
	b := make([]byte, 257)
	n, _ := f.Read(b) // an empty file fails below
	secret := strings.TrimSpace(string(b[:n]))
	if _, ok := keyID(secret); !ok {
		return "", arenero.Errorf(arenero.Invalid, op, path, "it does not hold a key").
			WithHint("remove it to get a new key")
	}
	return secret, nil
}

// writeKey makes the file whole or not at all, never with wider rights.
func writeKey(path, secret string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone after the link
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path) // unlike rename, never replaces another's key
}

// keyID returns the public part of "arn_ID_SECRET".
func keyID(secret string) (string, bool) {
	if len(secret) > 200 {
		return "", false
	}
	parts := strings.Split(secret, "_")
	if len(parts) != 3 || parts[0] != "arn" || len(parts[1]) < 8 || len(parts[2]) < 40 {
		return "", false
	}
	return parts[1], true
}
