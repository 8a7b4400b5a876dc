package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/arenero/arenero"
)

// A Key is what is kept of an API key. The secret itself is nowhere.
type Key struct {
	ID       string    // public part of the secret
	Name     string    // for people
	Hash     []byte    // SHA-256 of the whole secret
	Tenant   string    //
	Scopes   []string  //
	Ceilings Ceilings  //
	Created  time.Time //
	Expires  time.Time // zero is never
	Used     time.Time // last use, to about a minute
}

// Ceilings bound what the owner of a key may have; 0 is no bound of its own.
type Ceilings struct {
	Sandboxes int     `json:"sandboxes,omitempty"` // at once
	CPUs      float64 `json:"cpus,omitempty"`      // of one sandbox
	Memory    int64   `json:"memory,omitempty"`    // bytes, of one sandbox
	Disk      int64   `json:"disk,omitempty"`      // bytes, of one sandbox
	Creates   int     `json:"creates,omitempty"`   // sandboxes made in a minute
	Engine    string  `json:"engine,omitempty"`    // the only one it may use; "" is any
}

// AddKey keeps a key. [arenero.Conflict] for an id that exists.
func (s *Store) AddKey(ctx context.Context, k Key) error {
	const op = "record key"
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return fault(op, k.ID, err)
	}
	ceilings, err := json.Marshal(k.Ceilings)
	if err != nil {
		return fault(op, k.ID, err)
	}
	err = s.tx(ctx, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM keys WHERE id = ?`, k.ID).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return arenero.Errorf(arenero.Conflict, op, k.ID, "the id is in use")
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO keys (id, name, hash, tenant, scopes, ceilings, created, expires)
			VALUES (?,?,?,?,?,?,?,?)`,
			k.ID, k.Name, k.Hash, k.Tenant, string(scopes), string(ceilings), nanos(k.Created), nanos(k.Expires))
		return err
	})
	if err != nil {
		return fault(op, k.ID, err)
	}
	return nil
}

// Key returns one key. [arenero.NotFound] when there is none.
func (s *Store) Key(ctx context.Context, id string) (Key, error) {
	const op = "read key"
	k, err := scanKey(s.read.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return k, arenero.Errorf(arenero.NotFound, op, id, "no such key")
	}
	if err != nil {
		return k, fault(op, id, err)
	}
	return k, nil
}

// Keys lists the keys in the order of their creation.
func (s *Store) Keys(ctx context.Context) ([]Key, error) {
	const op = "list keys"
	rows, err := s.read.QueryContext(ctx, `SELECT `+keyColumns+` FROM keys ORDER BY created, id`)
	if err != nil {
		return nil, fault(op, "", err)
	}
	defer rows.Close()
	out := []Key{}
	for rows.Next() {
		k, err := scanKey(rows)
		if err != nil {
			return nil, fault(op, "", err)
		}
		out = append(out, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, "", err)
	}
	return out, nil
}

// RemoveKey forgets a key. [arenero.NotFound] when there is none.
func (s *Store) RemoveKey(ctx context.Context, id string) error {
	const op = "remove key"
	res, err := s.write.ExecContext(ctx, `DELETE FROM keys WHERE id = ?`, id)
	if err != nil {
		return fault(op, id, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fault(op, id, err)
	}
	if n == 0 {
		return arenero.Errorf(arenero.NotFound, op, id, "no such key")
	}
	return nil
}

// TouchKey writes when a key was last used.
func (s *Store) TouchKey(ctx context.Context, id string, at time.Time) error {
	if _, err := s.write.ExecContext(ctx, `UPDATE keys SET used = ? WHERE id = ?`, nanos(at), id); err != nil {
		return fault("record use of key", id, err)
	}
	return nil
}

const keyColumns = `id, name, hash, tenant, scopes, ceilings, created, expires, used`

func scanKey(row interface{ Scan(...any) error }) (Key, error) {
	var k Key
	var scopes, ceilings string
	var created, expires, used int64
	err := row.Scan(&k.ID, &k.Name, &k.Hash, &k.Tenant, &scopes, &ceilings, &created, &expires, &used)
	if err != nil {
		return k, err
	}
	if err := json.Unmarshal([]byte(scopes), &k.Scopes); err != nil {
		return k, err
	}
	if err := json.Unmarshal([]byte(ceilings), &k.Ceilings); err != nil {
		return k, err
	}
	k.Created, k.Expires, k.Used = fromNanos(created), fromNanos(expires), fromNanos(used)
	return k, nil
}
