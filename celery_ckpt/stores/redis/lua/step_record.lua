--[[ step_record: record the result of a step.
  KEYS[1]  hash of the agent (see shared.lua)
  KEYS[2]  hash: "length:run_id:key" -> "number value"    KEYS[3]  sorted set: the same names by iteration
  KEYS[4]  runs (see run_add.lua), if the step adds to the usage of its run
  ARGV[1]  lease  ARGV[2]  "length:run_id:key"  ARGV[3]  iteration  ARGV[4]  value
  ARGV[5], ARGV[6]  only with KEYS[4]: run_id, and the usage to add
  returns  {"ok", is_first_step} | {"exists", "number value"} | refusal
]]
local exists = redis.call('HGET', KEYS[2], ARGV[2])
if exists then return {'exists', exists} end
local refused = refusal(ARGV[1])
if refused then return refused end
local number = redis.call('HINCRBY', KEYS[1], 'steps', 1)
redis.call('HSET', KEYS[2], ARGV[2], number .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2])
local stored = KEYS[4] and redis.call('HGET', KEYS[4], ARGV[5])
if stored then
  local before, used, rest = string.match(stored, '^(%d+ )(%S+)(.*)$')
  if before then redis.call('HSET', KEYS[4], ARGV[5], before .. add_usage(used, ARGV[6]) .. rest) end
end
return {'ok', number == 1 and 1 or 0}
