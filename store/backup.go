package store

import (
	"context"
	"strings"

	"github.com/arenero/arenero"
)

// Backup writes a sound copy of the data base to a path that must not exist,
// while everybody goes on. [arenero.Conflict] when it exists.
func (s *Store) Backup(ctx context.Context, path string) error {
	const op = "back up store"
	if _, err := s.write.ExecContext(ctx, `VACUUM INTO ?`, path); err != nil {
		if strings.Contains(err.Error(), "output file already exists") {
			return arenero.Errorf(arenero.Conflict, op, path, "the file exists").WithHint("choose another name, or remove it")
		}
		return fault(op, path, err)
	}
	return nil
}
