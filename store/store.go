// Package store keeps what must outlive the daemon: sandboxes and keys, in one
// SQLite file.
//
// # The life of a change
//
// The host writes what it is about to do (a sandbox is creating, is killing),
// does it, and writes how it went. Each of these writes is on disk when the
// method returns (WAL with synchronous=FULL), so after a crash the next daemon
// finds every half-done act by its state. One connection writes; readers have
// their own and never wait for it.
//
// A data folder belongs to one process at a time: [Open] holds a lock on it until
// [Store.Close].
//
// All errors are *arenero.Error.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/arenero/arenero"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is an open data base. Its methods may be called from any number of
// goroutines.
type Store struct {
	write *sql.DB // one connection: writers queue here instead of on SQLITE_BUSY
	read  *sql.DB
	lock  *os.File
}

// Open opens or makes the data base of a data folder, brings its tables up to
// date and checks that it is sound. [arenero.Conflict] when another process has
// the folder open; [arenero.Internal] when the file is damaged; and
// [arenero.Unavailable] when it was written by a newer arenero.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault("open store", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{lock: lock}
	if err := s.open(filepath.Join(dir, "arenero.db")); err != nil {
		_ = s.Close() // the first error says more
		return nil, err
	}
	return s, nil
}

// Memory opens a data base that is gone when it is closed and locks nothing: for
// a host that lives as long as one command.
func Memory() (*Store, error) {
	db, err := sql.Open("sqlite", dsn(":memory:", false))
	if err != nil {
		return nil, fault("open store", "", err)
	}
	db.SetMaxOpenConns(1) // each connection to :memory: would be another data base
	s := &Store{write: db, read: db}
	if err := s.migrate(); err != nil {
		_ = s.Close() // the first error says more
		return nil, err
	}
	return s, nil
}

// Close gives up the folder. It is idempotent.
func (s *Store) Close() error {
	var errs []error
	if s.read != nil && s.read != s.write {
		errs = append(errs, s.read.Close())
	}
	if s.write != nil {
		errs = append(errs, s.write.Close())
	}
	s.read, s.write = nil, nil
	if s.lock != nil {
		errs = append(errs, s.lock.Close()) // closing is what unlocks it
		s.lock = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fault("close store", "", err)
	}
	return nil
}

// lockDir takes the lock of a data folder and writes our pid into it for the
// one who comes second.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault("lock data folder", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault("lock data folder", dir, err)
		}
		by := "another process"
		b := make([]byte, 20)
		n, _ := f.ReadAt(b, 0) // EOF is usual
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
			by = fmt.Sprintf("process %d", pid)
		}
		return nil, arenero.Errorf(arenero.Conflict, "lock data folder", dir, "%s has it open", by).
			WithHint("stop the other arenero serve, or give this one a folder of its own with --data")
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			f.Close()
			return nil, fault("lock data folder", dir, err)
		}
	}
	return f, nil
}

func (s *Store) open(path string) error {
	// Made by us first, so that it never exists with wider rights.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fault("open store", path, err)
	}
	f.Close()
	if s.write, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return fault("open store", path, err)
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dsn(path, true)); err != nil {
		return fault("open store", path, err)
	}
	s.read.SetMaxOpenConns(4)
	if err := s.check(path); err != nil {
		return err
	}
	return s.migrate()
}

func dsn(path string, readOnly bool) string {
	q := url.Values{}
	add := func(p string) { q.Add("_pragma", p) }
	add("busy_timeout(10000)")
	add("foreign_keys(1)")
	if readOnly {
		add("query_only(1)")
	} else {
		add("journal_mode(WAL)")
		add("synchronous(FULL)")
		q.Set("_txlock", "immediate")
	}
	if path == ":memory:" {
		return path + "?" + q.Encode()
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// check asks SQLite whether the file is sound.
func (s *Store) check(path string) error {
	damaged := func(err error) error {
		return arenero.Errorf(arenero.Internal, "check store", path, "%w", err).
			WithHint("the file is damaged: restore it from a backup, or move it away to start with an empty one")
	}
	rows, err := s.write.QueryContext(context.Background(), "PRAGMA quick_check(5)")
	if err != nil {
		return damaged(err)
	}
	defer rows.Close()
	var found []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return damaged(err)
		}
		if line != "ok" {
			found = append(found, line)
		}
	}
	if err := rows.Err(); err != nil {
		return damaged(err)
	}
	if len(found) > 0 {
		return damaged(errors.New(strings.Join(found, "; ")))
	}
	return nil
}

// migrate runs the embedded files whose number is above the data base's, each in
// a transaction of its own.
func (s *Store) migrate() error {
	const op = "migrate store"
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return fault(op, "", err)
	}
	sort.Strings(names)
	var have int
	if err := s.write.QueryRowContext(context.Background(), "PRAGMA user_version").Scan(&have); err != nil {
		return fault(op, "", err)
	}
	if have > len(names) {
		return arenero.Errorf(arenero.Unavailable, op, "", "it has version %d, this arenero knows %d", have, len(names)).
			WithHint("run the newer arenero that wrote it")
	}
	for i, name := range names[have:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return fault(op, name, err)
		}
		if err := s.tx(context.Background(), func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(context.Background(), string(text)); err != nil {
				return err
			}
			// PRAGMA takes no parameters; the number is ours.
			_, err := tx.ExecContext(context.Background(), "PRAGMA user_version = "+strconv.Itoa(have+i+1))
			return err
		}); err != nil {
			return fault(op, name, err)
		}
	}
	return nil
}

// tx runs f in one transaction of the writer.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// fault wraps an error of SQLite or of the file system.
func fault(op, id string, err error) error {
	if _, ok := errors.AsType[*arenero.Error](err); ok {
		return err
	}
	code, hint := arenero.Internal, ""
	switch {
	case errors.Is(err, context.Canceled):
		code = arenero.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = arenero.Timeout
	case errors.Is(err, fs.ErrPermission):
		code, hint = arenero.Unavailable, "run as the owner of the data folder, or choose another with --data"
	case errors.Is(err, unix.ENOSPC), strings.Contains(err.Error(), "database or disk is full"):
		code, hint = arenero.Exhausted, "make room on the disk of the data folder"
	}
	out := arenero.Errorf(code, op, id, "%w", err)
	if hint != "" {
		out = out.WithHint("%s", hint)
	}
	return out
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
