--[[ schedule_add: schedule an agent for the watchdog or for a sweep.
  KEYS[1]  sorted set: agents by due time, in microseconds
  ARGV[1]  agent_id  ARGV[2]  how long from now, in microseconds
  returns  the due time
]]
local time = redis.call('TIME')
local due_at = time[1] * 1000000 + time[2] + ARGV[2]
local function set() return redis.call('ZADD', KEYS[1], 'CH', string.format('%.0f', due_at), ARGV[1]) end
-- Each call sets a different due time, so that it can be distinguished from the one before.
if set() == 0 then
  due_at = due_at - 1
  set()
end
return due_at
