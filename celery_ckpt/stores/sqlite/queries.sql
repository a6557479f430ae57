-- The statements of the SQLite store. The line above each has its name and its parameters in order.
-- key is the key of an agent; first and last are the first and the last number that its saves can have.

-- agent (agent_id)
SELECT key, token, nonce, owner, expires_at, active, given_at, youngest_blocked, policy, changed_at, attempt, followed
FROM ckpt_agents WHERE agent_id = ?1

-- add_agent (agent_id, locator, changed_at)
INSERT INTO ckpt_agents (agent_id, locator, changed_at) VALUES (?1, ?2, ?3)

-- set_changed (key, changed_at, status)
UPDATE ckpt_agents SET changed_at = ?2, status = ifnull(?3, status) WHERE key = ?1

-- page (changed_at, agent_id, limit, prefix)
SELECT agent_id, changed_at FROM ckpt_agents
WHERE (changed_at, agent_id) < (?1, ?2) AND substr(agent_id, 1, length(?4)) = ?4
ORDER BY changed_at DESC, agent_id DESC LIMIT ?3

-- page_by_status (changed_at, agent_id, limit, prefix, status)
SELECT agent_id, changed_at FROM ckpt_agents
WHERE status = ?5 AND (changed_at, agent_id) < (?1, ?2) AND substr(agent_id, 1, length(?4)) = ?4
ORDER BY changed_at DESC, agent_id DESC LIMIT ?3

-- misplaced ()
-- Agents whose listed status is not that of their active or last run. Only another program can cause this.
SELECT a.key, agent_id, ifnull(json_extract(CAST(outline AS TEXT), '$.status'), 'idle')
FROM ckpt_agents AS a LEFT JOIN ckpt_runs AS r ON r.number = coalesce(
    (SELECT number FROM ckpt_runs WHERE agent = a.key AND run_id = a.active),
    (SELECT max(number) FROM ckpt_runs WHERE agent = a.key))
WHERE r.number IS NULL AND a.status != 'idle'
    OR json_valid(CAST(outline AS TEXT)) AND a.status != json_extract(CAST(outline AS TEXT), '$.status')

-- agents_page (after, page)
SELECT key, agent_id FROM ckpt_agents WHERE key > ?1 ORDER BY key LIMIT ?2

-- set_lease (key, token, nonce, owner, expires_at)
UPDATE ckpt_agents SET token = ?2, nonce = ?3, owner = ?4, expires_at = ?5
WHERE key = ?1

-- append (agent_id, lease token, lease nonce or empty, basis, its base, its low to digest, base, format, count, id, record, messages)
-- Adds a save if nothing at all prevents it. The sub-select refuses the row by a text in place of its number.
-- INSERT ... SELECT and RETURNING would each copy the row into a temporary table first. The id must follow the
-- id of the basis and begin with the same 16 characters and "-": see ckpt_saves in schema.sql.
INSERT INTO ckpt_saves (number, indexed, base, format, count, id, record, messages)
VALUES (ifnull((
    SELECT CASE WHEN a.listed AND NOT a.followed AND a.nonce = ?3 AND (?2 IS NULL OR a.token = ?2)
        AND last.id = ?4 AND last.base = ?5 AND last.base + last.count = ?7
        AND substr(last.record, 1, length(?6)) = ?6
        AND NOT last.indexed AND ?10 > ?4 AND substr(?10, 1, 17) = substr(?4, 1, 17)
        THEN last.number + 1 END
    FROM ckpt_agents AS a JOIN ckpt_saves AS last
        ON last.number BETWEEN a.key << 32 AND a.key << 32 | 4294967295
    WHERE a.agent_id = ?1 ORDER BY last.number DESC LIMIT 1
), 'no number'), 0, ?7, ?8, ?9, ?10, ?11, ?12)

-- last_save (id, basis, first, last, base of the basis, its low to digest)
-- Whether the id follows the last one, whether the basis exists, and the number and the end of the last save.
SELECT NOT last.indexed AND ?1 > last.id AND substr(?1, 1, 17) = substr(last.id, 1, 17),
    (SELECT 1 FROM ckpt_saves WHERE number BETWEEN ?3 AND ?4
        AND id = ?2 AND base = ?5 AND substr(record, 1, length(?6)) = ?6 ORDER BY number DESC LIMIT 1),
    last.number & 4294967295, last.base + last.count
FROM ckpt_saves AS last
WHERE last.number = (SELECT max(number) FROM ckpt_saves WHERE number BETWEEN ?3 AND ?4)

-- has_checkpoint (first, last)
SELECT 1 FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2 AND id IS NOT NULL LIMIT 1

-- add_save (number, indexed, base, format, count, id, record, messages)
INSERT INTO ckpt_saves (number, indexed, base, format, count, id, record, messages)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)

-- has_later_id (first, last, id)
SELECT 1 FROM ckpt_saves
WHERE number BETWEEN ?1 AND ?2 AND id >= ?3 AND substr(id, 1, 17) = substr(?3, 1, 17) LIMIT 1

-- latest (first, last)
SELECT id, format, number & 4294967295, base, ifnull(record, x'') FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2 AND id IS NOT NULL
ORDER BY number DESC LIMIT 1

-- newest (first, last, limit)
SELECT id, format, number & 4294967295, base, ifnull(record, x'') FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2 AND id IS NOT NULL
ORDER BY number DESC LIMIT ?3

-- by_id (first, last, id, 1 if the id names its agent)
SELECT id, format, number & 4294967295, base, ifnull(record, x'') FROM ckpt_saves
WHERE number BETWEEN ?1 AND ?2 AND id = ?3 AND indexed
UNION ALL
SELECT id, format, number & 4294967295, base, ifnull(record, x'') FROM ckpt_saves
WHERE ?4 AND number BETWEEN ?1 AND ?2 AND id = ?3 AND NOT indexed
LIMIT 1

-- agents_by_id (id, locator)
SELECT agent_id FROM ckpt_agents WHERE locator = ?2
UNION
SELECT agent_id FROM ckpt_agents WHERE key = (SELECT number >> 32 FROM ckpt_saves WHERE id = ?1 AND indexed)

-- is_indexed (id)
SELECT 1 FROM ckpt_saves WHERE id = ?1 AND indexed

-- messages (first, last, start, stop)
SELECT base, count, messages FROM ckpt_saves
WHERE number BETWEEN ?1 AND ?2 AND base < ?4 AND base + count > ?3

-- ids (first, last)
SELECT id, number FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2 AND id IS NOT NULL

-- remove (number)
UPDATE ckpt_saves SET id = NULL, record = NULL WHERE number = ?1

-- trim (first, last, keep_from)
DELETE FROM ckpt_saves
WHERE number BETWEEN ?1 AND ?2 AND id IS NULL AND base + count <= ?3 AND number < (
    SELECT max(number) FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2)

-- count_checkpoints (first, last)
SELECT count(*) FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2 AND id IS NOT NULL

-- delete_saves (first, last)
DELETE FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2

-- delete_agent (key)
DELETE FROM ckpt_agents WHERE key = ?1

-- delete_steps (key)
DELETE FROM ckpt_steps WHERE agent = ?1

-- delete_runs (key)
DELETE FROM ckpt_runs WHERE agent = ?1

-- delete_run (key, run_id)
DELETE FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2

-- step (key, run_id, step)
SELECT value FROM ckpt_steps WHERE agent = ?1 AND run_id = ?2 AND key = ?3

-- add_step (key, run_id, step, iteration, value)
INSERT INTO ckpt_steps (agent, run_id, key, iteration, value)
VALUES (?1, ?2, ?3, ?4, ?5)

-- steps (key, run_id)
SELECT value FROM ckpt_steps WHERE agent = ?1 AND run_id = ?2 ORDER BY number

-- all_steps (key)
SELECT number, run_id, value FROM ckpt_steps WHERE agent = ?1 ORDER BY number

-- put_step (number, key, run_id, step, iteration, value)
INSERT INTO ckpt_steps (number, agent, run_id, key, iteration, value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- drop_steps (key, run_id, first iteration, last iteration)
DELETE FROM ckpt_steps
WHERE agent = ?1 AND run_id = ?2 AND iteration BETWEEN ?3 AND ?4

-- count_steps (key)
SELECT count(*) FROM ckpt_steps WHERE agent = ?1

-- run (key, run_id)
SELECT run_id, outline, payload FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2

-- put_run (key, run_id, open, in_line, key_id, outline, payload)
-- A run that is opened again counts as sent now.
INSERT INTO ckpt_runs (agent, run_id, open, in_line, key_id, outline, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (agent, run_id) DO UPDATE SET open = ?3, in_line = ?4, key_id = ?5, outline = ?6, payload = ?7,
    number = CASE WHEN ?3 AND NOT open THEN (SELECT max(number) + 1 FROM ckpt_runs) ELSE number END

-- runs (key)
SELECT run_id, outline, payload FROM ckpt_runs WHERE agent = ?1 ORDER BY number

-- open_runs (key, active, limit)
-- The active run, the first ones in line, and some that are not in line.
SELECT run_id, outline, payload FROM ckpt_runs WHERE number IN (
    SELECT number FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2 AND open
    UNION SELECT number FROM (SELECT number FROM ckpt_runs
        WHERE agent = ?1 AND open AND in_line >= 0 ORDER BY in_line, number LIMIT ?3)
    UNION SELECT number FROM (SELECT number FROM ckpt_runs
        WHERE agent = ?1 AND open AND in_line IS NULL ORDER BY number LIMIT ?3)
) ORDER BY number

-- join_line (key, now)
UPDATE ckpt_runs SET in_line = 0 WHERE agent = ?1 AND open AND in_line BETWEEN 1 AND ?2

-- first_in_line (key)
SELECT run_id, outline, payload FROM ckpt_runs WHERE agent = ?1 AND open AND in_line = 0 ORDER BY number LIMIT 1

-- leave_line (key, run_id)
UPDATE ckpt_runs SET in_line = NULL WHERE agent = ?1 AND run_id = ?2

-- is_older (key, run_id, than)
SELECT 1 FROM ckpt_runs AS one JOIN ckpt_runs AS other ON other.agent = ?1 AND other.run_id = ?3
WHERE one.agent = ?1 AND one.run_id = ?2 AND one.number < other.number

-- run_outline (key, run_id)
SELECT run_id, outline, key_id FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2

-- run_outlines (key, before, limit)
SELECT run_id, outline, key_id FROM ckpt_runs WHERE agent = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3

-- run_number (key, run_id)
SELECT number FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2

-- runs_to_mark (key)
-- The open and the cancelled ones. A record is not parsed, because it may be damaged. A marker too many does no harm.
SELECT run_id FROM ckpt_runs
WHERE agent = ?1 AND (open OR instr(outline, CAST('"status":"cancelled"' AS BLOB)))

-- add_marker (digest, expires_at)
INSERT INTO ckpt_deleted (digest, expires_at) VALUES (?1, ?2)
ON CONFLICT (digest) DO UPDATE SET expires_at = ?2

-- marker (digest, now)
SELECT 1 FROM ckpt_deleted WHERE digest = ?1 AND expires_at > ?2

-- set_attempt (key, attempt)
UPDATE ckpt_agents SET attempt = ?2 WHERE key = ?1

-- set_followed (key, milliseconds)
UPDATE ckpt_agents SET followed = ?2 WHERE key = ?1

-- append_event (first, last, part, entry)
INSERT INTO ckpt_events (number, part, entry)
VALUES (ifnull((SELECT max(number) FROM ckpt_events WHERE number BETWEEN ?1 AND ?2), ?1) + 1, ?3, ?4)

-- put_event (number, part, entry)
INSERT INTO ckpt_events (number, part, entry) VALUES (?1, ?2, ?3)

-- events (first, last)
SELECT number & 4294967295, part, entry FROM ckpt_events WHERE number BETWEEN ?1 AND ?2 ORDER BY number

-- events_after (first, last, after)
SELECT number & 4294967295, part, entry FROM ckpt_events WHERE number BETWEEN ?1 + ?3 + 1 AND ?2 ORDER BY number

-- last_event (first, last)
SELECT ifnull(max(number), 0) & 4294967295 FROM ckpt_events WHERE number BETWEEN ?1 AND ?2

-- trim_events (first, last, part, keep)
DELETE FROM ckpt_events WHERE part = ?3 AND number BETWEEN ?1
    AND (SELECT number FROM ckpt_events WHERE part = ?3 AND number BETWEEN ?1 AND ?2 ORDER BY number DESC LIMIT 1 OFFSET ?4)

-- drop_events (first, last, part)
DELETE FROM ckpt_events WHERE part = ?3 AND number BETWEEN ?1 AND ?2
    AND number < (SELECT max(number) FROM ckpt_events WHERE number BETWEEN ?1 AND ?2)

-- empty_events (first, last, part)
UPDATE ckpt_events SET part = '', entry = x'' WHERE part = ?3 AND number BETWEEN ?1 AND ?2

-- delete_events (first, last)
DELETE FROM ckpt_events WHERE number BETWEEN ?1 AND ?2

-- drop_markers (now)
DELETE FROM ckpt_deleted WHERE expires_at <= ?1

-- set_turn (key, active, given_at, youngest_blocked)
UPDATE ckpt_agents SET active = ?2, given_at = ?3, youngest_blocked = ?4 WHERE key = ?1

-- last_number (first, last)
SELECT max(number) FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2

-- schedule_watchdog (agent_id, due_at)
-- An agent that is due earlier already becomes due one microsecond earlier still: its due time always changes.
INSERT INTO ckpt_watchdog (agent_id, due_at) VALUES (?1, ?2)
ON CONFLICT (agent_id) DO UPDATE SET due_at = min(due_at - 1, ?2)
RETURNING due_at

-- schedule_sweep (agent_id, due_at)
INSERT INTO ckpt_sweep (agent_id, due_at) VALUES (?1, ?2)
ON CONFLICT (agent_id) DO UPDATE SET due_at = min(due_at - 1, ?2)
RETURNING due_at

-- unschedule_watchdog (agent_id, due_at)
DELETE FROM ckpt_watchdog WHERE agent_id = ?1 AND due_at = ?2

-- unschedule_sweep (agent_id, due_at)
DELETE FROM ckpt_sweep WHERE agent_id = ?1 AND due_at = ?2

-- reschedule_watchdog (agent_id, due_at before, due_at)
UPDATE ckpt_watchdog SET due_at = CASE WHEN due_at = ?3 THEN ?3 - 1 ELSE ?3 END
WHERE agent_id = ?1 AND due_at = ?2
RETURNING due_at

-- reschedule_sweep (agent_id, due_at before, due_at)
UPDATE ckpt_sweep SET due_at = CASE WHEN due_at = ?3 THEN ?3 - 1 ELSE ?3 END
WHERE agent_id = ?1 AND due_at = ?2
RETURNING due_at

-- due_watchdog (now, limit)
SELECT agent_id, due_at FROM ckpt_watchdog WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2

-- due_sweep (now, limit)
SELECT agent_id, due_at FROM ckpt_sweep WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2

-- count_due_watchdog (now)
SELECT count(*) FROM ckpt_watchdog WHERE due_at <= ?1

-- count_due_sweep (now)
SELECT count(*) FROM ckpt_sweep WHERE due_at <= ?1

-- delete_sweep (agent_id)
DELETE FROM ckpt_sweep WHERE agent_id = ?1

-- orphans_watchdog ()
SELECT agent_id, due_at FROM ckpt_watchdog WHERE agent_id NOT IN (SELECT agent_id FROM ckpt_agents)

-- orphans_sweep ()
SELECT agent_id, due_at FROM ckpt_sweep WHERE agent_id NOT IN (SELECT agent_id FROM ckpt_agents)

-- unscheduled_watchdog ()
SELECT DISTINCT agent_id FROM ckpt_agents AS a JOIN ckpt_runs AS r ON r.agent = a.key AND r.open
WHERE agent_id NOT IN (SELECT agent_id FROM ckpt_watchdog)

-- unscheduled_sweep ()
SELECT agent_id FROM ckpt_agents WHERE listed AND agent_id NOT IN (SELECT agent_id FROM ckpt_sweep)

-- set_listed (key, listed)
UPDATE ckpt_agents SET listed = ?2 WHERE key = ?1

-- set_policy (key, policy)
UPDATE ckpt_agents SET policy = ?2 WHERE key = ?1

-- has_run (key, run_id)
SELECT 1 FROM ckpt_runs WHERE agent = ?1 AND run_id = ?2

-- count_runs (key)
SELECT (SELECT count(*) FROM ckpt_runs WHERE agent = ?1), (SELECT count(*) FROM ckpt_runs WHERE agent = ?1 AND open)

-- last_run (key)
SELECT run_id, outline, payload FROM ckpt_runs WHERE agent = ?1 ORDER BY number DESC LIMIT 1

-- deletable_runs (key, agent_id)
SELECT run_id, outline FROM ckpt_runs
WHERE agent = ?1 AND NOT open AND run_id != ?2 AND number < (SELECT max(number) FROM ckpt_runs WHERE agent = ?1)

-- size (first, last, key)
SELECT ifnull((SELECT sum(ifnull(length(record), 0) + length(messages)) FROM ckpt_saves WHERE number BETWEEN ?1 AND ?2), 0)
    + ifnull((SELECT sum(length(outline) + length(payload)) FROM ckpt_runs WHERE agent = ?3), 0)
