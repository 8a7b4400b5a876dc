-- A volume is a folder of a tenant that outlives sandboxes. id names its files.
CREATE TABLE volumes (
	id      TEXT    NOT NULL PRIMARY KEY,
	tenant  TEXT    NOT NULL,
	name    TEXT    NOT NULL,
	quota   INTEGER NOT NULL, -- bytes
	created INTEGER NOT NULL,
	UNIQUE (tenant, name)
) STRICT;
