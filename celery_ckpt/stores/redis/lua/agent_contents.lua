--[[ agent_contents: return a digest of everything that an agent has: its checkpoints, steps and runs.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  steps (see step_record.lua)
  KEYS[3]  runs (see run_add.lua)
  returns  the digest
]]
return contents(KEYS[2], KEYS[3])
