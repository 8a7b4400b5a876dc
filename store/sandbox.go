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
}

// A Filter chooses sandboxes. The zero value chooses all.
type Filter struct {
	Tenant string          // "" is every tenant
	States []arenero.State // none is every state
	Image  string
	After  string // id of the last one of the page before
	Limit  int    // 0 is no bound
}

// limits is arenero.Limits with the field that the public JSON does not show.
type limits struct {
	arenero.Limits

	Timeout time.Duration `json:"timeout_ns"`
}

// AddSandbox writes the intent to make a sandbox. [arenero.Conflict] for an id
// that exists.
func (s *Store) AddSandbox(ctx context.Context, sb arenero.Sandbox, spec arenero.Spec) error {
	const op = "record sandbox"
	hidden := make(map[string]string, len(spec.Env))
	for k := range spec.Env {
		hidden[k] = ""
	}
	spec.Env = hidden
	lim, err := json.Marshal(limits{sb.Limits, sb.Limits.Timeout})
	if err != nil {
		return fault(op, sb.ID, err)
	}
	labels, err := json.Marshal(sb.Labels)
	if err != nil {
		return fault(op, sb.ID, err)
	}
	asked, err := json.Marshal(spec)
	if err != nil {
		return fault(op, sb.ID, err)
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO sandboxes
		(id, tenant, state, engine, image, limits, labels, spec, made_by, made_why, created, ends)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
		sb.ID, sb.Tenant, string(sb.State), sb.Engine, sb.Image, string(lim), string(labels), string(asked),
		sb.From, sb.FromWhy, nanos(sb.Created), nanos(sb.Ends))
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed") {
		return arenero.Errorf(arenero.Conflict, op, sb.ID, "the id is in use")
	}
	if err != nil {
		return fault(op, sb.ID, err)
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
			ended      = CASE WHEN ? = 0 THEN ended ELSE ? END
			WHERE id = ? AND state = ?`,
			string(c.To), c.Reason, c.Reason, string(c.ExitCause), string(c.ExitCause),
			c.From, c.From, c.FromWhy, c.FromWhy, nanos(c.Ends), nanos(c.Ends), ended, ended,
			id, string(from))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
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
	made_by, made_why, reason, exit_cause, created, ends`

// Sandbox returns one sandbox. [arenero.NotFound] when there is none.
func (s *Store) Sandbox(ctx context.Context, id string) (arenero.Sandbox, error) {
	const op = "read sandbox"
	row := s.read.QueryRowContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
	sb, err := scanSandbox(row)
	if errors.Is(err, sql.ErrNoRows) {
		return sb, arenero.Errorf(arenero.NotFound, op, id, "no such sandbox")
	}
	if err != nil {
		return sb, fault(op, id, err)
	}
	return sb, nil
}

// Sandboxes lists sandboxes in the order of their creation.
func (s *Store) Sandboxes(ctx context.Context, f Filter) ([]arenero.Sandbox, error) {
	const op = "list sandboxes"
	where := []string{"1"}
	var args []any
	if f.Tenant != "" {
		where, args = append(where, "tenant = ?"), append(args, f.Tenant)
	}
	if f.Image != "" {
		where, args = append(where, "image = ?"), append(args, f.Image)
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
	out := []arenero.Sandbox{}
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

func scanSandbox(row interface{ Scan(...any) error }) (arenero.Sandbox, error) {
	var sb arenero.Sandbox
	var state, lim, labels, cause string
	var created, ends int64
	err := row.Scan(&sb.ID, &sb.Tenant, &state, &sb.Engine, &sb.Image, &lim, &labels,
		&sb.From, &sb.FromWhy, &sb.Reason, &cause, &created, &ends)
	if err != nil {
		return sb, err
	}
	var l limits
	if err := json.Unmarshal([]byte(lim), &l); err != nil {
		return sb, err
	}
	if err := json.Unmarshal([]byte(labels), &sb.Labels); err != nil {
		return sb, err
	}
	sb.Limits, sb.Limits.Timeout = l.Limits, l.Timeout
	sb.State, sb.ExitCause = arenero.State(state), arenero.ExitReason(cause)
	sb.Created, sb.Ends = fromNanos(created), fromNanos(ends)
	return sb, nil
}
