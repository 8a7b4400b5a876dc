package store

import (
	"context"

	"github.com/arenero/arenero"
)

// SetPool writes how a pool is to be kept; one with max 0 is forgotten.
func (s *Store) SetPool(ctx context.Context, p arenero.Pool) error {
	const op = "record pool"
	q, args := `INSERT INTO pools (image, cpus, memory, min, max) VALUES (?,?,?,?,?)
		ON CONFLICT DO UPDATE SET min = excluded.min, max = excluded.max`, []any{p.Image, p.CPUs, p.Memory, p.Min, p.Max}
	if p.Max == 0 {
		q, args = `DELETE FROM pools WHERE image = ? AND cpus = ? AND memory = ?`, args[:3]
	}
	if _, err := s.write.ExecContext(ctx, q, args...); err != nil {
		return fault(op, p.Image, err)
	}
	return nil
}

// Pools lists the pools that were set.
func (s *Store) Pools(ctx context.Context) ([]arenero.Pool, error) {
	const op = "list pools"
	rows, err := s.read.QueryContext(ctx, `SELECT image, cpus, memory, min, max FROM pools ORDER BY image, cpus, memory`)
	if err != nil {
		return nil, fault(op, "", err)
	}
	defer rows.Close()
	out := []arenero.Pool{}
	for rows.Next() {
		var p arenero.Pool
		if err := rows.Scan(&p.Image, &p.CPUs, &p.Memory, &p.Min, &p.Max); err != nil {
			return nil, fault(op, "", err)
		}
		out = append(out, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(op, "", err)
	}
	return out, nil
}
