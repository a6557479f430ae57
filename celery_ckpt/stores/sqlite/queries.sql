-- Every statement of the SQLite store by its name. Each name stands in a line of its own before it.

-- agent
SELECT key, token, nonce, owner, expires_at FROM ckpt_agents WHERE agent_id = :agent_id

-- add_agent
INSERT INTO ckpt_agents (agent_id) VALUES (:agent_id)

-- agents_page
SELECT key, agent_id FROM ckpt_agents WHERE key > :after ORDER BY key LIMIT :page

-- set_lease
UPDATE ckpt_agents SET token = :token, nonce = :nonce, owner = :owner, expires_at = :expires_at
WHERE key = :key

-- save_state
SELECT a.key, a.token, a.nonce, a.owner, a.expires_at,
    (SELECT record FROM ckpt_saves WHERE id = :id AND place >> 32 = a.key),
    (SELECT place >> 32 FROM ckpt_saves WHERE id = :basis),
    last.place, last.base + last.count
FROM ckpt_agents AS a LEFT JOIN ckpt_saves AS last ON last.place = (
    SELECT max(place) FROM ckpt_saves WHERE place BETWEEN a.key << 32 AND a.key << 32 | 4294967295)
WHERE a.agent_id = :agent_id

-- has_checkpoint
SELECT 1 FROM ckpt_saves WHERE place BETWEEN :low AND :high AND id IS NOT NULL LIMIT 1

-- add_save
INSERT INTO ckpt_saves (place, base, count, id, record, messages)
VALUES (:place, :base, :count, :id, :record, :messages)

-- latest
SELECT id, record FROM ckpt_saves WHERE place BETWEEN :low AND :high AND id IS NOT NULL
ORDER BY place DESC LIMIT 1

-- newest
SELECT id, record FROM ckpt_saves WHERE place BETWEEN :low AND :high AND id IS NOT NULL
ORDER BY place DESC LIMIT :limit

-- by_id
SELECT id, record FROM ckpt_saves WHERE place BETWEEN :low AND :high AND id = :id

-- agent_of_id
SELECT agent_id FROM ckpt_agents WHERE key = (SELECT place >> 32 FROM ckpt_saves WHERE id = :id)

-- messages
SELECT base, count, messages FROM ckpt_saves
WHERE place BETWEEN :low AND :high AND base < :stop AND base + count > :start

-- forget
UPDATE ckpt_saves SET id = NULL, record = NULL WHERE place BETWEEN :low AND :high AND id = :id

-- trim
DELETE FROM ckpt_saves
WHERE place BETWEEN :low AND :high AND id IS NULL AND base + count <= :keep_from

-- count_checkpoints
SELECT count(*) FROM ckpt_saves WHERE place BETWEEN :low AND :high AND id IS NOT NULL

-- delete_saves
DELETE FROM ckpt_saves WHERE place BETWEEN :low AND :high

-- delete_agent
DELETE FROM ckpt_agents WHERE key = :key

-- delete_steps
DELETE FROM ckpt_steps WHERE agent = :key

-- delete_runs
DELETE FROM ckpt_runs WHERE agent = :key

-- step
SELECT value FROM ckpt_steps WHERE agent = :key AND run_id = :run_id AND key = :step

-- add_step
INSERT INTO ckpt_steps (agent, run_id, key, iteration, value)
VALUES (:key, :run_id, :step, :iteration, :value)

-- steps
SELECT value FROM ckpt_steps WHERE agent = :key AND run_id = :run_id ORDER BY number

-- drop_steps
DELETE FROM ckpt_steps
WHERE agent = :key AND run_id = :run_id AND iteration BETWEEN :first AND :last

-- run
SELECT record FROM ckpt_runs WHERE agent = :key AND run_id = :run_id

-- add_run
INSERT INTO ckpt_runs (agent, run_id, record) VALUES (:key, :run_id, :record)

-- update_run
UPDATE ckpt_runs SET record = :record WHERE agent = :key AND run_id = :run_id

-- runs
SELECT run_id, record FROM ckpt_runs WHERE agent = :key ORDER BY number
