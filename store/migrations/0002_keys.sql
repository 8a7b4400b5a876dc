-- Keys are kept as the SHA-256 of the secret: 256 random bits need no slow hash.
CREATE TABLE keys (
	id       TEXT PRIMARY KEY,
	name     TEXT NOT NULL DEFAULT '',
	hash     BLOB NOT NULL UNIQUE,
	tenant   TEXT NOT NULL,
	scopes   TEXT NOT NULL, -- JSON list
	ceilings TEXT NOT NULL DEFAULT '{}', -- JSON
	created  INTEGER NOT NULL,
	expires  INTEGER NOT NULL DEFAULT 0,
	used     INTEGER NOT NULL DEFAULT 0
) STRICT;
