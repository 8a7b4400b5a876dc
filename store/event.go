package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/arenero/arenero"
)

// addEvent writes an event; the tenant is looked up when it is "".
func addEvent(ctx context.Context, tx *sql.Tx, e arenero.Event, tenant string) error {
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return err
	}
	if tenant == "" {
		_, err = tx.ExecContext(ctx, `INSERT INTO events (sandbox, tenant, at, kind, state, detail)
			SELECT id, tenant, ?, ?, ?, ? FROM sandboxes WHERE id = ?`,
			nanos(e.At), e.Kind, string(e.State), string(detail), e.Sandbox)
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO events (sandbox, tenant, at, kind, state, detail) VALUES (?,?,?,?,?,?)`,
		e.Sandbox, tenant, nanos(e.At), e.Kind, string(e.State), string(detail))
	return err
}

// AddEvents writes what happened in sandboxes, all in one transaction.
func (s *Store) AddEvents(ctx context.Context, events []arenero.Event) error {
	if err := s.tx(ctx, func(tx *sql.Tx) error {
		for _, e := range events {
			if err := addEvent(ctx, tx, e, ""); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fault("record events", "", err)
	}
	return nil
}

// Events returns a tenant's events after a sequence number, oldest first; sandbox
// "" is all of its sandboxes.
func (s *Store) Events(ctx context.Context, tenant, sandbox string, after int64, limit int) ([]arenero.Event, error) {
	const op = "read events"
	q := `SELECT seq, sandbox, at, kind, state, detail FROM events WHERE tenant = ? AND seq > ?`
	args := []any{tenant, after}
	if sandbox != "" {
		q, args = q+` AND sandbox = ?`, append(args, sandbox)
	}
	rows, err := s.read.QueryContext(ctx, q+` ORDER BY seq LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fault(op, sandbox, err)
	}
	defer rows.Close()
	out := []arenero.Event{}
	for rows.Next() {
		var e arenero.Event
		var at int64
		var state, detail string
		if err := rows.Scan(&e.Seq, &e.Sandbox, &at, &e.Kind, &state, &detail); err != nil {
			return nil, fault(op, sandbox, err)
		}
		if err := json.Unmarshal([]byte(detail), &e.Detail); err != nil {
			return nil, fault(op, sandbox, err)
		}
		e.At, e.State = fromNanos(at), arenero.State(state)
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, sandbox, err)
	}
	return out, nil
}

// ForgetEvents removes the events before a time.
func (s *Store) ForgetEvents(ctx context.Context, before time.Time) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM events WHERE at < ?`, nanos(before)); err != nil {
		return fault("forget events", "", err)
	}
	return nil
}
