package store

import (
	"context"
	"database/sql"
	"time"
)

// An Act is something that was asked for under an idempotency key.
type Act struct {
	Tenant, Key string
	Hash        string // of the request
	Ref         string // the sandbox that it makes, if it makes one
	Answer      []byte // JSON; nil when it was begun and its end is not known
	At          time.Time
}

// BeginAct writes the intent of an act, or returns the one that has this key
// already; begun says which.
func (s *Store) BeginAct(ctx context.Context, a Act) (is Act, begun bool, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO acts (tenant, key, hash, ref, at) VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING`,
			a.Tenant, a.Key, a.Hash, a.Ref, nanos(a.At))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			is, begun = a, true
			return err
		}
		is = Act{Tenant: a.Tenant, Key: a.Key}
		var answer sql.NullString
		var at int64
		err = tx.QueryRowContext(ctx, `SELECT hash, ref, answer, at FROM acts WHERE tenant = ? AND key = ?`, a.Tenant, a.Key).
			Scan(&is.Hash, &is.Ref, &answer, &at)
		if answer.Valid {
			is.Answer = []byte(answer.String)
		}
		is.At = fromNanos(at)
		return err
	})
	if err != nil {
		return is, false, fault("begin act", "", err)
	}
	return is, begun, nil
}

// EndAct writes how an act was answered.
func (s *Store) EndAct(ctx context.Context, a Act) error {
	if _, err := s.write.ExecContext(ctx, `UPDATE acts SET answer = ?, ref = ? WHERE tenant = ? AND key = ?`,
		string(a.Answer), a.Ref, a.Tenant, a.Key); err != nil {
		return fault("end act", "", err)
	}
	return nil
}

// DropAct forgets an act: one that failed may be tried again under its key.
func (s *Store) DropAct(ctx context.Context, tenant, key string) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM acts WHERE tenant = ? AND key = ?`, tenant, key); err != nil {
		return fault("drop act", "", err)
	}
	return nil
}

// ForgetActs removes the acts before a time.
func (s *Store) ForgetActs(ctx context.Context, before time.Time) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM acts WHERE at < ?`, nanos(before)); err != nil {
		return fault("forget acts", "", err)
	}
	return nil
}
