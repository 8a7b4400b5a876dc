package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/arenero/arenero"
)

// A Volume is what is kept of one: what its owner sees, and the name of its files.
type Volume struct {
	arenero.Volume

	ID string
}

// AddVolume writes down a volume whose files are there. [arenero.Conflict] when
// the tenant has one of the name.
func (s *Store) AddVolume(ctx context.Context, v Volume) error {
	const op = "record volume"
	_, err := s.write.ExecContext(ctx, `INSERT INTO volumes (id, tenant, name, quota, created) VALUES (?,?,?,?,?)`,
		v.ID, v.Tenant, v.Name, v.Quota, nanos(v.Created))
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed") {
		return arenero.Errorf(arenero.Conflict, op, v.Name, "a volume of this name exists")
	}
	if err != nil {
		return fault(op, v.Name, err)
	}
	return nil
}

const volumeColumns = `id, tenant, name, quota, created`

// Volume returns one volume. [arenero.NotFound] when there is none.
func (s *Store) Volume(ctx context.Context, tenant, name string) (Volume, error) {
	const op = "read volume"
	v, err := scanVolume(s.read.QueryRowContext(ctx, `SELECT `+volumeColumns+` FROM volumes WHERE tenant = ? AND name = ?`, tenant, name))
	if errors.Is(err, sql.ErrNoRows) {
		return v, arenero.Errorf(arenero.NotFound, op, name, "no such volume")
	}
	if err != nil {
		return v, fault(op, name, err)
	}
	return v, nil
}

// Volumes lists a tenant's volumes by name; tenant "" is all of them.
func (s *Store) Volumes(ctx context.Context, tenant string) ([]Volume, error) {
	const op = "list volumes"
	rows, err := s.read.QueryContext(ctx, `SELECT `+volumeColumns+` FROM volumes WHERE ? = '' OR tenant = ? ORDER BY tenant, name`, tenant, tenant)
	if err != nil {
		return nil, fault(op, "", err)
	}
	defer rows.Close()
	out := []Volume{}
	for rows.Next() {
		v, err := scanVolume(rows)
		if err != nil {
			return nil, fault(op, "", err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, "", err)
	}
	return out, nil
}

// RemoveVolume forgets a volume. [arenero.NotFound] when there is none.
func (s *Store) RemoveVolume(ctx context.Context, id string) error {
	const op = "remove volume"
	res, err := s.write.ExecContext(ctx, `DELETE FROM volumes WHERE id = ?`, id)
	if err != nil {
		return fault(op, id, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(op, id, err)
	} else if n == 0 {
		return arenero.Errorf(arenero.NotFound, op, id, "no such volume")
	}
	return nil
}

func scanVolume(row interface{ Scan(...any) error }) (Volume, error) {
	var v Volume
	var created int64
	err := row.Scan(&v.ID, &v.Tenant, &v.Name, &v.Quota, &created)
	v.Created = fromNanos(created)
	return v, err
}
