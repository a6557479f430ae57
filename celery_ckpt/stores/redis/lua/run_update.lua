--[[ run_update: replace the record of a run.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  KEYS[4], KEYS[5]  attempts and entries of the event log
  ARGV[1]  lease  ARGV[2]  run_id  ARGV[3]  the line after the number and the usage  ARGV[4]  log (see shared.lua)
  returns  {"ok"} | {"none"} | refusal
]]
local stored = redis.call('HGET', KEYS[2], ARGV[2])
if not stored then return {'none'} end
local refused = refusal(ARGV[1])
if refused then return refused end
local number, usage = string.match(stored, '^(%d+) (%S+) ')
local was_settled, settled = is_settled(run_facts(stored)), is_settled(run_facts('0 - ' .. ARGV[3]))
if was_settled and not settled then
  -- It is sent again. A deletion that has marked the runs before must notice this, see agent_delete.lua.
  number = redis.call('HINCRBY', KEYS[1], 'runs', 1)
  redis.call('HSET', KEYS[1], 'last', ARGV[2])
  redis.call('ZADD', KEYS[3], number, ARGV[2])
elseif settled and not was_settled then
  redis.call('ZREM', KEYS[3], ARGV[2])
end
redis.call('HSET', KEYS[2], ARGV[2], number .. ' ' .. usage .. ' ' .. ARGV[3])
note(ARGV[4], KEYS[4], KEYS[5])
return {'ok'}
