-- The tables of an SQLite store, format 1. docs/reference/storage-format.md describes them.
-- All names begin with ckpt_, so that the store can live in another program's database.

CREATE TABLE ckpt_format (version INTEGER NOT NULL) STRICT;

-- An agent, what its checkpoints' ids begin with, its lease, the run whose turn it is, what was decided about
-- it, and whether a sweep is sure to look at it soon. Times are microseconds since 1970; an empty nonce means
-- that nobody holds the lease, an empty active that it is no run's turn.
CREATE TABLE ckpt_agents (
    key        INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id   TEXT NOT NULL UNIQUE,
    locator    TEXT NOT NULL,
    token      INTEGER NOT NULL DEFAULT 0,
    nonce      TEXT NOT NULL DEFAULT '',
    owner      TEXT NOT NULL DEFAULT '',
    expires_at INTEGER NOT NULL DEFAULT 0,
    active     TEXT NOT NULL DEFAULT '',
    notes      BLOB NOT NULL DEFAULT x'',
    listed     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX ckpt_locators ON ckpt_agents (locator);

-- One row a save: the messages that it added to the agent's log, one JSON line each, and, until it is
-- pruned, its checkpoint: the record after version, seq and base. place is the agent's key * 2^32 + seq,
-- so that an agent's saves lie together and in order. An id is not indexed if it begins with its agent's
-- locator and "-", and is greater than all earlier ones that do, as nearly every id is: its agent can be told
-- from it, and a greater one cannot be the same. An index of all ids would be a fifth of what a save costs.
CREATE TABLE ckpt_saves (
    place    INTEGER PRIMARY KEY,
    base     INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    format   INTEGER NOT NULL,
    id       TEXT,
    indexed  INTEGER NOT NULL,
    record   BLOB,
    messages BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX ckpt_indexed_ids ON ckpt_saves (id) WHERE indexed;

CREATE TABLE ckpt_steps (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    agent     INTEGER NOT NULL,
    run_id    TEXT NOT NULL,
    key       TEXT NOT NULL,
    iteration INTEGER NOT NULL,
    value     BLOB NOT NULL,
    UNIQUE (agent, run_id, key)
) STRICT;

CREATE TABLE ckpt_runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    agent  INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    open   INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (agent, run_id)
) STRICT;

CREATE INDEX ckpt_open_runs ON ckpt_runs (agent) WHERE open;

-- When a watchdog should look at an agent.
CREATE TABLE ckpt_due (
    agent_id TEXT PRIMARY KEY,
    moment   INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_due_moments ON ckpt_due (moment);

-- When a sweep should.
CREATE TABLE ckpt_sweep (
    agent_id TEXT PRIMARY KEY,
    moment   INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_sweep_moments ON ckpt_sweep (moment);

INSERT INTO ckpt_format VALUES (1);
