package image

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// fail gives an error its code. What has one keeps it.
func fail(op, id string, err error) error {
	if err == nil {
		return nil
	}
	var e *arenero.Error
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return arenero.Errorf(arenero.Timeout, op, id, "%w", err)
	case errors.Is(err, context.Canceled):
		return arenero.Errorf(arenero.Canceled, op, id, "%w", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return arenero.Errorf(arenero.Exhausted, op, id, "disk full: %w", err).
			WithHint("free some space where the data lives, or choose another place with --data")
	case errors.Is(err, fs.ErrPermission):
		return arenero.Errorf(arenero.Denied, op, id, "%w", err).WithHint("run as root")
	}
	return arenero.Errorf(arenero.Internal, op, id, "%w", err)
}

// isDiskFull reports whether the output of a tool says that the disk is full.
func isDiskFull(out string) bool {
	return strings.Contains(out, "No space left on device") ||
		strings.Contains(out, "You don't have enough free space") ||
		strings.Contains(out, "Disk quota exceeded")
}
