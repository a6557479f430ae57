--[[ contents: a digest of everything that an agent has: its checkpoints, steps and runs.
  KEYS[1]  hash of the agent (see fence.lua)    KEYS[2]  steps (see record_step.lua)
  KEYS[3]  runs (see add_run.lua)
  returns  the digest
]]
return contents(KEYS[2], KEYS[3])
