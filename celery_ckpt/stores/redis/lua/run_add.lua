--[[ run_add: add the record of a run, unless it exists.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  hash: run_id -> a run's line (see shared.lua)
  KEYS[3]  sorted set: the ids of the open runs, by their places (see first_in_line in shared.lua)
  ARGV[1]  run_id  ARGV[2]  the line after the number
  ARGV[3]  its place; "": its number
  returns  {"ok", is_first_run} | {"exists", line}
]]
local exists = redis.call('HGET', KEYS[2], ARGV[1])
if exists then return {'exists', exists} end
local number = redis.call('HINCRBY', KEYS[1], 'runs', 1)
redis.call('HSET', KEYS[1], 'last', ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], number .. ' ' .. ARGV[2])
if not is_settled(run_facts(number .. ' ' .. ARGV[2])) then
  redis.call('ZADD', KEYS[3], ARGV[3] == '' and number or ARGV[3], ARGV[1])
end
return {'ok', number == 1 and 1 or 0}
