-- The tables of an SQLite store, format 1. docs/reference/storage-format.md describes them.
-- All names begin with ckpt_, so that the store can live in another program's database.

CREATE TABLE ckpt_format (version INTEGER NOT NULL) STRICT;

-- One row per agent: its lease, which run has the turn (active; given_at, 0 if it has begun; youngest_blocked: the
-- youngest run that was ever blocked) and its policy. Its checkpoint ids begin with the locator. listed is 1 while the
-- agent is certain to be on the schedule of sweeps. Times are microseconds since 1970. An empty nonce means that the
-- lease is free; an empty active, that no run is active. changed_at and status are what agents are listed by: when a
-- run last changed, and the status of the active or last run.
-- attempt is the attempt that has started and has not ended, for the event log, and empty without one. followed is until
-- when the agent has a follower, in milliseconds since 1970; 0: it has none.
CREATE TABLE ckpt_agents (
    key        INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id   TEXT NOT NULL UNIQUE,
    locator    TEXT NOT NULL,
    token      INTEGER NOT NULL DEFAULT 0,
    nonce      TEXT NOT NULL DEFAULT '',
    owner      TEXT NOT NULL DEFAULT '',
    expires_at INTEGER NOT NULL DEFAULT 0,
    active     TEXT NOT NULL DEFAULT '',
    given_at   INTEGER NOT NULL DEFAULT 0,
    youngest_blocked TEXT NOT NULL DEFAULT '',
    policy     BLOB NOT NULL DEFAULT x'',
    listed     INTEGER NOT NULL DEFAULT 0,
    changed_at INTEGER NOT NULL DEFAULT 0,
    status     TEXT NOT NULL DEFAULT 'idle',
    attempt    BLOB NOT NULL DEFAULT x'',
    followed   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX ckpt_locators ON ckpt_agents (locator);
CREATE INDEX ckpt_changes ON ckpt_agents (changed_at, agent_id);
CREATE INDEX ckpt_changes_by_status ON ckpt_agents (status, changed_at, agent_id);

-- One row per save: the messages that it added to the agent's log, one JSON line each, and its checkpoint: the
-- record without version, seq and base. Removing a checkpoint empties id and record. number is the agent's
-- key * 2^32 + seq, so that an agent's saves are stored together and in order.
-- An id is not indexed if it begins with its agent's locator and "-" and is greater than all earlier ids that do.
-- Nearly all ids are like that: the locator leads to the agent, and an id that is greater than all others is new. An
-- index of all ids would be a fifth of the cost of a save.
CREATE TABLE ckpt_saves (
    number   INTEGER PRIMARY KEY,
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

-- One row per run. number is the order in which the runs were sent. in_line is 0 while an open run may have the turn,
-- or the time from which it may; it is NULL if it may not (it has ended, or was passed over), or has turned out to be
-- expired. key_id is the key that the record is encrypted with, or NULL. The record is in two parts. The payload,
-- {"envelope":...,"result":...}, can be long. It is the last column, so that SQLite need not read it for the outline,
-- which is the rest.
CREATE TABLE ckpt_runs (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    agent   INTEGER NOT NULL,
    run_id  TEXT NOT NULL,
    open    INTEGER NOT NULL,
    in_line INTEGER,
    key_id  TEXT,
    outline BLOB NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (agent, run_id)
) STRICT;

CREATE INDEX ckpt_runs_in_order ON ckpt_runs (agent);

CREATE INDEX ckpt_open_runs ON ckpt_runs (agent) WHERE open;
CREATE INDEX ckpt_lines ON ckpt_runs (agent, in_line, number) WHERE open;

-- The event log: one row per entry. number is the agent's key * 2^32 + the cursor. The row with the last number of an agent
-- is never deleted before its agent, so that no number is used twice; its part is empty if its entry is gone.
CREATE TABLE ckpt_events (
    number INTEGER PRIMARY KEY,
    part   TEXT NOT NULL,
    entry  BLOB NOT NULL
) STRICT;

-- One row per run that was open or cancelled when its agent was deleted: the first 128 bits of the SHA-256 of the run's
-- id, in hex, and until when a late message of the run is recognised by it.
CREATE TABLE ckpt_deleted (
    digest     TEXT PRIMARY KEY,
    expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_deleted_expiries ON ckpt_deleted (expires_at);

-- When an agent is due for the watchdog.
CREATE TABLE ckpt_watchdog (
    agent_id TEXT PRIMARY KEY,
    due_at   INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_watchdog_due_times ON ckpt_watchdog (due_at);

-- When an agent is due for a sweep.
CREATE TABLE ckpt_sweep (
    agent_id TEXT PRIMARY KEY,
    due_at   INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_sweep_due_times ON ckpt_sweep (due_at);

INSERT INTO ckpt_format VALUES (1);
