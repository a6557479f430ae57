-- What a store lacks that was made before there were sweeps, which look once at all that is there.

ALTER TABLE ckpt_agents ADD COLUMN notes BLOB NOT NULL DEFAULT x'';

ALTER TABLE ckpt_agents ADD COLUMN listed INTEGER NOT NULL DEFAULT 0;

CREATE TABLE ckpt_sweep (
    agent_id TEXT PRIMARY KEY,
    moment   INTEGER NOT NULL
) STRICT;

CREATE INDEX ckpt_sweep_moments ON ckpt_sweep (moment);

INSERT INTO ckpt_sweep SELECT agent_id, 0 FROM ckpt_agents;
