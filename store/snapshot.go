package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/arenero/arenero"
)

// AddSnapshot writes down a snapshot whose files are on disk.
// [arenero.Conflict] for an id that exists.
func (s *Store) AddSnapshot(ctx context.Context, n arenero.Snapshot) error {
	const op = "record snapshot"
	lim, err := json.Marshal(limits{n.Limits, n.Limits.Timeout})
	if err != nil {
		return fault(op, n.ID, err)
	}
	labels, err := json.Marshal(n.Labels)
	if err != nil {
		return fault(op, n.ID, err)
	}
	volumes, err := json.Marshal(n.Volumes)
	if err != nil {
		return fault(op, n.ID, err)
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO snapshots (id, name, tenant, sandbox, image, engine, limits, labels, volumes, size, created)
		VALUES (?,?,?,?,?,?,?,?,?,?,?)`,
		n.ID, n.Name, n.Tenant, n.Sandbox, n.Image, n.Engine, string(lim), string(labels), string(volumes), n.Size, nanos(n.Created))
	if err != nil {
		return fault(op, n.ID, err)
	}
	return nil
}

const snapshotColumns = `id, name, tenant, sandbox, image, engine, limits, labels, volumes, size, created`

// Snapshot returns one snapshot. [arenero.NotFound] when there is none.
func (s *Store) Snapshot(ctx context.Context, id string) (arenero.Snapshot, error) {
	const op = "read snapshot"
	n, err := scanSnapshot(s.read.QueryRowContext(ctx, `SELECT `+snapshotColumns+` FROM snapshots WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return n, arenero.Errorf(arenero.NotFound, op, id, "no such snapshot")
	}
	if err != nil {
		return n, fault(op, id, err)
	}
	return n, nil
}

// Snapshots lists a tenant's snapshots in the order they were made; tenant and
// sandbox "" are all of them.
func (s *Store) Snapshots(ctx context.Context, tenant, sandbox, after string, limit int) ([]arenero.Snapshot, error) {
	const op = "list snapshots"
	rows, err := s.read.QueryContext(ctx, `SELECT `+snapshotColumns+` FROM snapshots
		WHERE (? = '' OR tenant = ?) AND (? = '' OR sandbox = ?)
		AND seq > coalesce((SELECT seq FROM snapshots WHERE id = ?), 0) ORDER BY seq LIMIT ?`,
		tenant, tenant, sandbox, sandbox, after, limit)
	if err != nil {
		return nil, fault(op, "", err)
	}
	defer rows.Close()
	out := []arenero.Snapshot{}
	for rows.Next() {
		n, err := scanSnapshot(rows)
		if err != nil {
			return nil, fault(op, "", err)
		}
		out = append(out, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, "", err)
	}
	return out, nil
}

// RemoveSnapshot forgets a snapshot. [arenero.NotFound] when there is none.
func (s *Store) RemoveSnapshot(ctx context.Context, id string) error {
	const op = "remove snapshot"
	res, err := s.write.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ?`, id)
	if err != nil {
		return fault(op, id, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(op, id, err)
	} else if n == 0 {
		return arenero.Errorf(arenero.NotFound, op, id, "no such snapshot")
	}
	return nil
}

func scanSnapshot(row interface{ Scan(...any) error }) (arenero.Snapshot, error) {
	var n arenero.Snapshot
	var lim, labels, volumes string
	var created int64
	if err := row.Scan(&n.ID, &n.Name, &n.Tenant, &n.Sandbox, &n.Image, &n.Engine, &lim, &labels, &volumes, &n.Size, &created); err != nil {
		return n, err
	}
	var l limits
	if err := json.Unmarshal([]byte(lim), &l); err != nil {
		return n, err
	}
	if err := json.Unmarshal([]byte(labels), &n.Labels); err != nil {
		return n, err
	}
	if err := json.Unmarshal([]byte(volumes), &n.Volumes); err != nil {
		return n, err
	}
	n.Limits, n.Limits.Timeout = l.Limits, l.Timeout
	n.Created = fromNanos(created)
	return n, nil
}
