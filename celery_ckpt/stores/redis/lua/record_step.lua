--[[ record_step: keep a step's result.
  KEYS[1]  hash of the agent (see fence.lua)
  KEYS[2]  hash: "length:run_id:key" -> "number value"    KEYS[3]  sorted set: the same by iteration
  ARGV[1]  lease  ARGV[2]  "length:run_id:key"  ARGV[3]  iteration  ARGV[4]  value
  returns  {"ok", is_first_step} | {"exists", "number value"} | refusal
]]
local exists = redis.call('HGET', KEYS[2], ARGV[2])
if exists then return {'exists', exists} end
local refused = refusal(ARGV[1])
if refused then return refused end
local number = redis.call('HINCRBY', KEYS[1], 'steps', 1)
redis.call('HSET', KEYS[2], ARGV[2], number .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2])
return {'ok', number == 1 and 1 or 0}
