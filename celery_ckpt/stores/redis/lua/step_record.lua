--[[ step_record: record the result of a step.
  KEYS[1]  hash of the agent (see shared.lua)
  KEYS[2]  hash: "length:run_id:key" -> "number value"    KEYS[3]  sorted set: the same names by iteration
  KEYS[4], KEYS[5]  attempts and entries of the event log (see shared.lua)
  KEYS[6]  runs (see run_add.lua), if the step adds to the usage of its run
  ARGV[1]  lease  ARGV[2]  "length:run_id:key"  ARGV[3]  iteration  ARGV[4]  value  ARGV[5]  log (see shared.lua)
  ARGV[6], ARGV[7]  only with KEYS[6]: run_id, and the usage to add
  returns  {"ok", is_first_step} | {"exists", "number value"} | refusal
]]
local exists = redis.call('HGET', KEYS[2], ARGV[2])
if exists then return {'exists', exists} end
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'steps', 'events')
local refused = lease_refusal(agent, ARGV[1])
if refused then return refused end
local number = string.format('%d', (tonumber(agent[5]) or 0) + 1)
if ARGV[5] == '' then
  redis.call('HSET', KEYS[1], 'steps', number)
else
  local last = append_call(ARGV[5], KEYS[5], agent[6])
    or string.format('%d', (append(ARGV[5], KEYS[4], KEYS[5], agent[6])))
  redis.call('HSET', KEYS[1], 'steps', number, 'events', last)
end
redis.call('HSET', KEYS[2], ARGV[2], number .. ' ' .. ARGV[4])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2])
local stored = KEYS[6] and redis.call('HGET', KEYS[6], ARGV[6])
if stored then
  local before, used, rest = string.match(stored, '^(%d+ )(%S+)(.*)$')
  if before then redis.call('HSET', KEYS[6], ARGV[6], before .. add_usage(used, ARGV[7]) .. rest) end
end
return {'ok', number == '1' and 1 or 0}
