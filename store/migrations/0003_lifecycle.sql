-- A sandbox keeps its id while it goes through several boxes: each restore makes
-- a new one. box is the engine's name for the present one, state_id the state on
-- disk of a sandbox that sleeps there.
ALTER TABLE sandboxes ADD COLUMN box        TEXT    NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN state_id   TEXT    NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN digest     TEXT    NOT NULL DEFAULT ''; -- of the image
ALTER TABLE sandboxes ADD COLUMN hostname   TEXT    NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN lifetime   INTEGER NOT NULL DEFAULT 0;  -- nanoseconds
ALTER TABLE sandboxes ADD COLUMN idle       INTEGER NOT NULL DEFAULT 0;  -- nanoseconds, 0 is never
ALTER TABLE sandboxes ADD COLUMN on_timeout TEXT    NOT NULL DEFAULT 'kill';
ALTER TABLE sandboxes ADD COLUMN parent     TEXT    NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN snapshot   TEXT    NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN volumes    TEXT    NOT NULL DEFAULT '[]'; -- JSON
UPDATE sandboxes SET box = id, hostname = id;

CREATE TABLE snapshots (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	id      TEXT NOT NULL UNIQUE,
	name    TEXT NOT NULL DEFAULT '',
	tenant  TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	image   TEXT NOT NULL, -- digest
	engine  TEXT NOT NULL,
	limits  TEXT NOT NULL, -- JSON
	labels  TEXT NOT NULL, -- JSON
	volumes TEXT NOT NULL DEFAULT '[]', -- JSON
	size    INTEGER NOT NULL DEFAULT 0,
	created INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_by_tenant ON snapshots (tenant, seq);

CREATE TABLE events (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	sandbox TEXT NOT NULL,
	tenant  TEXT NOT NULL,
	at      INTEGER NOT NULL,
	kind    TEXT NOT NULL,
	state   TEXT NOT NULL DEFAULT '',
	detail  TEXT NOT NULL DEFAULT '{}' -- JSON
) STRICT;
CREATE INDEX events_by_sandbox ON events (sandbox, seq);
CREATE INDEX events_by_tenant ON events (tenant, seq);

-- What was asked for under an idempotency key: begun, and then how it was
-- answered. hash is of the request, so that a key is not used for another one.
CREATE TABLE acts (
	tenant TEXT NOT NULL,
	key    TEXT NOT NULL,
	hash   TEXT NOT NULL,
	ref    TEXT NOT NULL DEFAULT '', -- the sandbox a create makes
	answer TEXT,                     -- JSON; null until it is done
	at     INTEGER NOT NULL,
	PRIMARY KEY (tenant, key)
) STRICT;

CREATE TABLE pools (
	image  TEXT    NOT NULL,
	cpus   REAL    NOT NULL,
	memory INTEGER NOT NULL,
	min    INTEGER NOT NULL,
	max    INTEGER NOT NULL,
	PRIMARY KEY (image, cpus, memory)
) STRICT;
