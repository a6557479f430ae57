--[[ schedule_add: schedule an agent for the watchdog or for a sweep, never later than before.
  KEYS[1]  sorted set: agents by due time, in microseconds
  ARGV[1]  agent_id  ARGV[2]  how long from now, in microseconds
  returns  the due time
]]
local time, before = redis.call('TIME'), redis.call('ZSCORE', KEYS[1], ARGV[1])
local due_at = time[1] * 1000000 + time[2] + ARGV[2]
-- The due time always changes, so that it can be distinguished from the one before.
if before then due_at = math.min(due_at, before - 1) end
redis.call('ZADD', KEYS[1], string.format('%.0f', due_at), ARGV[1])
return due_at
