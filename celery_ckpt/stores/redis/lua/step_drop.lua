--[[ step_drop: drop the steps of some iterations of a run.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  steps (see step_record.lua)
  ARGV[1]  lease  ARGV[2]  "length:run_id:"  ARGV[3], ARGV[4]  first and last iteration
  returns  {"ok", number of dropped steps} | refusal
]]
local refused = refusal(ARGV[1])
if refused then return refused end
return {'ok', drop_steps(ARGV[2], ARGV[3], ARGV[4])}
