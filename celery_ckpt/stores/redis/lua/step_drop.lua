--[[ step_drop: drop the steps of some iterations of a run, a part at a time.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  steps (see step_record.lua)
  KEYS[4]  runs (see run_add.lua): only if the run is settled and succeeded, and then without a lease
  ARGV[1]  lease  ARGV[2]  "length:run_id:"  ARGV[3], ARGV[4]  first and last iteration
  ARGV[5]  where to continue: a rank in KEYS[3] counted from the first iteration; at first "0"
  ARGV[6]  only with KEYS[4]: run_id
  returns  {"ok", number of dropped steps, ARGV[5] of the next part or -1 after the last one} | refusal
]]
if KEYS[4] then
  local stored = redis.call('HGET', KEYS[4], ARGV[6])
  if stored and not string.match(stored, '^%d+ %S+ succeeded 1 ') then return {'ok', 0, -1} end
else
  local refused = refusal(ARGV[1])
  if refused then return refused end
end
local dropped, rank = drop_steps(ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]))
return {'ok', dropped, rank}
