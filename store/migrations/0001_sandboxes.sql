-- One row for each sandbox that ever was, until it is forgotten. Times are unix
-- nanoseconds, 0 is "never". The intent (creating, killing) is written before
-- the act, so that a crash in between is seen at the next start.
CREATE TABLE sandboxes (
	seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of creation, for stable paging
	id         TEXT NOT NULL UNIQUE,
	tenant     TEXT NOT NULL,
	state      TEXT NOT NULL,
	engine     TEXT NOT NULL,
	image      TEXT NOT NULL,
	limits     TEXT NOT NULL, -- JSON
	labels     TEXT NOT NULL, -- JSON
	spec       TEXT NOT NULL, -- JSON, as asked; values of env are not kept: they may be secrets
	made_by    TEXT NOT NULL DEFAULT '', -- boot, restore
	made_why   TEXT NOT NULL DEFAULT '',
	reason     TEXT NOT NULL DEFAULT '',
	exit_cause TEXT NOT NULL DEFAULT '',
	created    INTEGER NOT NULL,
	ends       INTEGER NOT NULL DEFAULT 0,
	ended      INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant, seq);
CREATE INDEX sandboxes_by_state ON sandboxes (state, seq);
