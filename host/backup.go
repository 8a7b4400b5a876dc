package host

import (
	"context"
	"os"
	"path/filepath"

	"github.com/arenero/arenero"
)

// A Copy of the records is a file that is gone when it is closed.
type Copy struct {
	*os.File

	dir  string
	size int64
}

// Size is how many bytes it has.
func (c *Copy) Size() int64 { return c.size }

// Close removes it.
func (c *Copy) Close() error {
	err := c.File.Close()
	if rerr := os.RemoveAll(c.dir); err == nil {
		err = rerr
	}
	return err
}

// Backup makes a sound copy of the records while everybody goes on: a SQLite
// file. Images and the states of sandboxes are files of their own and not in it.
// The caller closes it.
func (h *Host) Backup(ctx context.Context, who Who) (*Copy, error) {
	const op = "back up"
	if err := h.operate(ctx, who, op); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "arenero-backup-") // 0700
	if err != nil {
		return nil, arenero.Errorf(arenero.Unavailable, op, "", "%w", err)
	}
	path := filepath.Join(dir, "arenero.db")
	c := &Copy{dir: dir}
	if err = h.store.Backup(ctx, path); err == nil {
		c.File, err = os.Open(path)
	}
	if err == nil {
		var st os.FileInfo
		if st, err = c.Stat(); err == nil {
			c.size = st.Size()
			return c, nil
		}
	}
	_ = os.RemoveAll(dir) // the first error says more
	return nil, arenero.Errorf(arenero.CodeOf(err), op, "", "%w", err)
}
