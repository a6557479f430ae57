-- What a store lacks that was made when every id was indexed. Its own index of them stays beside ours.

ALTER TABLE ckpt_agents ADD COLUMN locator TEXT NOT NULL DEFAULT '';

UPDATE ckpt_agents SET locator = ckpt_locator(agent_id);

CREATE INDEX ckpt_locators ON ckpt_agents (locator);

ALTER TABLE ckpt_saves ADD COLUMN indexed INTEGER NOT NULL DEFAULT 1;

CREATE UNIQUE INDEX ckpt_indexed_ids ON ckpt_saves (id) WHERE indexed;
