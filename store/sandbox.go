package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// A Change is what is written when a sandbox moves to another state. Empty
// fields leave what is there.
type Change struct {
	To        arenero.State
	At        time.Time
	Reason    string
	ExitCause arenero.ExitReason
	From      string // how it was made
	FromWhy   string
	Ends      time.Time
	Box       string         // the engine's name for its box
	StateID   string         // where it sleeps on disk; "-" is nowhere any more
	Event     *arenero.Event // what to tell of it; nil is the change of state alone
}

// A Row is all that is kept of a sandbox: what its owner sees, and what only the
// host needs.
type Row struct {
	arenero.Sandbox

	Box     string
	StateID string
	Digest  string // of its image
}

// A Filter chooses sandboxes. The zero value chooses all.
type Filter struct {
	Tenant string          // "" is every tenant
	States []arenero.State // none is every state
	Image  string
	Labels map[string]string // all of these
	After  string            // id of the last one of the page before
	Limit  int               // 0 is no bound
}

// limits is arenero.Limits with the field that the public JSON does not show.
type limits struct {
	arenero.Limits

	Timeout time.Duration `json:"timeout_ns"`
}

// AddSandbox writes the intent to make a sandbox, or one that is made already.
// The values of env are not kept: they may be secrets. [arenero.Conflict] for an
// id that exists.
func (s *Store) AddSandbox(ctx context.Context, r Row) error {
	const op = "record sandbox"
	lim, err := json.Marshal(limits{r.Limits, r.Limits.Timeout})
	if err != nil {
		return fault(op, r.ID, err)
	}
	labels, err := json.Marshal(r.Labels)
	if err != nil {
		return fault(op, r.ID, err)
	}
	volumes, err := json.Marshal(r.Volumes)
	if err != nil {
		return fault(op, r.ID, err)
	}
	err = s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes
			(id, tenant, state, engine, image, digest, limits, labels, spec, made_by, made_why, created, ends,
			 box, state_id, hostname, lifetime, idle, on_timeout, parent, snapshot, volumes)
			VALUES (?,?,?,?,?,?,?,?,'{}',?,?,?,?,?,?,?,?,?,?,?,?,?)`,
			r.ID, r.Tenant, string(r.State), r.Engine, r.Image, r.Digest, string(lim), string(labels),
			r.From, r.FromWhy, nanos(r.Created), nanos(r.Ends), r.Box, r.StateID, r.Hostname,
			int64(r.Lifetime), int64(r.Idle), string(r.OnTimeout), r.Parent, r.Snapshot, string(volumes))
		if err != nil {
			return err
		}
		return addEvent(ctx, tx, arenero.Event{Sandbox: r.ID, At: r.Created, Kind: "state", State: r.State}, r.Tenant)
	})
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed") {
		return arenero.Errorf(arenero.Conflict, op, r.ID, "the id is in use")
	}
	if err != nil {
		return fault(op, r.ID, err)
	}
	return nil
}

// MoveSandbox writes a change of state, if the sandbox is still in the state the
// caller believes. [arenero.Conflict] when it is in another, [arenero.NotFound]
// when there is none.
func (s *Store) MoveSandbox(ctx context.Context, id string, from arenero.State, c Change) error {
	const op = "record state"
	var ended int64
	if c.To.Ended() {
		ended = nanos(c.At)
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET state = ?,
			reason     = CASE WHEN ? = '' THEN reason ELSE ? END,
			exit_cause = CASE WHEN ? = '' THEN exit_cause ELSE ? END,
			made_by    = CASE WHEN ? = '' THEN made_by ELSE ? END,
			made_why   = CASE WHEN ? = '' THEN made_why ELSE ? END,
			ends       = CASE WHEN ? = 0 THEN ends ELSE ? END,
			ended      = CASE WHEN ? = 0 THEN ended ELSE ? END,
			box        = CASE WHEN ? = '' THEN box ELSE ? END,
			state_id   = CASE ? WHEN '' THEN state_id WHEN '-' THEN '' ELSE ? END
			WHERE id = ? AND state = ?`,
			string(c.To), c.Reason, c.Reason, string(c.ExitCause), string(c.ExitCause),
			c.From, c.From, c.FromWhy, c.FromWhy, nanos(c.Ends), nanos(c.Ends), ended, ended,
			c.Box, c.Box, c.StateID, c.StateID, id, string(from))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if n == 1 {
			e := arenero.Event{Kind: "state"}
			if c.Event != nil {
				e = *c.Event
			}
			e.Sandbox, e.At, e.State = id, c.At, c.To
			if e.Detail == nil && c.Reason != "" {
				e.Detail = map[string]string{"reason": c.Reason}
			}
			return addEvent(ctx, tx, e, "")
		}
		var is string
		err = tx.QueryRowContext(ctx, `SELECT state FROM sandboxes WHERE id = ?`, id).Scan(&is)
		if errors.Is(err, sql.ErrNoRows) {
			return arenero.Errorf(arenero.NotFound, op, id, "no such sandbox")
		}
		if err != nil {
			return err
		}
		return arenero.Errorf(arenero.Conflict, op, id, "it is %s, not %s", is, from)
	})
	if err != nil {
		return fault(op, id, err)
	}
	return nil
}

const sandboxColumns = `id, tenant, state, engine, image, limits, labels,
	made_by, made_why, reason, exit_cause, created, ends,
	box, state_id, digest, hostname, lifetime, idle, on_timeout, parent, snapshot, volumes`

// Sandbox returns one sandbox. [arenero.NotFound] when there is none.
func (s *Store) Sandbox(ctx context.Context, id string) (Row, error) {
	const op = "read sandbox"
	row := s.read.QueryRowContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
	r, err := scanSandbox(row)
	if errors.Is(err, sql.ErrNoRows) {
		return r, arenero.Errorf(arenero.NotFound, op, id, "no such sandbox")
	}
	if err != nil {
		return r, fault(op, id, err)
	}
	return r, nil
}

// EditSandbox writes what a patch has changed of a sandbox: its times, labels and
// limits. [arenero.NotFound] when there is none.
func (s *Store) EditSandbox(ctx context.Context, sb arenero.Sandbox) error {
	const op = "edit sandbox"
	lim, err := json.Marshal(limits{sb.Limits, sb.Limits.Timeout})
	if err != nil {
		return fault(op, sb.ID, err)
	}
	labels, err := json.Marshal(sb.Labels)
	if err != nil {
		return fault(op, sb.ID, err)
	}
	res, err := s.write.ExecContext(ctx, `UPDATE sandboxes SET limits = ?, labels = ?, ends = ?, lifetime = ?, idle = ?, on_timeout = ?
		WHERE id = ?`, string(lim), string(labels), nanos(sb.Ends), int64(sb.Lifetime), int64(sb.Idle), string(sb.OnTimeout), sb.ID)
	if err != nil {
		return fault(op, sb.ID, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(op, sb.ID, err)
	} else if n == 0 {
		return arenero.Errorf(arenero.NotFound, op, sb.ID, "no such sandbox")
	}
	return nil
}

// Sandboxes lists sandboxes in the order of their creation.
func (s *Store) Sandboxes(ctx context.Context, f Filter) ([]Row, error) {
	const op = "list sandboxes"
	where := []string{"1"}
	var args []any
	if f.Tenant != "" {
		where, args = append(where, "tenant = ?"), append(args, f.Tenant)
	}
	if f.Image != "" {
		where, args = append(where, "image = ?"), append(args, f.Image)
	}
	for k, v := range f.Labels {
		where = append(where, "EXISTS (SELECT 1 FROM json_each(labels) WHERE json_each.key = ? AND json_each.value = ?)")
		args = append(args, k, v)
	}
	if len(f.States) > 0 {
		where = append(where, "state IN (?"+strings.Repeat(",?", len(f.States)-1)+")")
		for _, st := range f.States {
			args = append(args, string(st))
		}
	}
	if f.After != "" {
		where = append(where, "seq > coalesce((SELECT seq FROM sandboxes WHERE id = ?), 0)")
		args = append(args, f.After)
	}
	q := `SELECT ` + sandboxColumns + ` FROM sandboxes WHERE ` + strings.Join(where, " AND ") + ` ORDER BY seq` //nolint:gosec // where holds our own words, values are parameters
	if f.Limit > 0 {
		q, args = q+" LIMIT ?", append(args, f.Limit)
	}
	rows, err := s.read.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, fault(op, "", err)
	}
	defer rows.Close()
	out := []Row{}
	for rows.Next() {
		sb, err := scanSandbox(rows)
		if err != nil {
			return nil, fault(op, "", err)
		}
		out = append(out, sb)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, "", err)
	}
	return out, nil
}

// ForgetSandboxes removes the rows of sandboxes that ended before a time and
// returns how many.
func (s *Store) ForgetSandboxes(ctx context.Context, before time.Time) (int64, error) {
	const op = "forget sandboxes"
	res, err := s.write.ExecContext(ctx, `DELETE FROM sandboxes
		WHERE state IN (?, ?) AND ended > 0 AND ended < ?`,
		string(arenero.Killed), string(arenero.Failed), nanos(before))
	if err != nil {
		return 0, fault(op, "", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fault(op, "", err)
	}
	return n, nil
}

func scanSandbox(row interface{ Scan(...any) error }) (Row, error) {
	var r Row
	var state, lim, labels, cause, onTimeout, volumes string
	var created, ends, lifetime, idle int64
	err := row.Scan(&r.ID, &r.Tenant, &state, &r.Engine, &r.Image, &lim, &labels,
		&r.From, &r.FromWhy, &r.Reason, &cause, &created, &ends,
		&r.Box, &r.StateID, &r.Digest, &r.Hostname, &lifetime, &idle, &onTimeout, &r.Parent, &r.Snapshot, &volumes)
	if err != nil {
		return r, err
	}
	var l limits
	if err := json.Unmarshal([]byte(lim), &l); err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(volumes), &r.Volumes); err != nil {
		return r, err
	}
	r.Limits, r.Limits.Timeout = l.Limits, l.Timeout
	r.State, r.ExitCause, r.OnTimeout = arenero.State(state), arenero.ExitReason(cause), arenero.OnTimeout(onTimeout)
	r.Created, r.Ends = fromNanos(created), fromNanos(ends)
	r.Lifetime, r.Idle = arenero.Seconds(lifetime), arenero.Seconds(idle)
	return r, nil
}
