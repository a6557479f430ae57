--[[ schedule_add: say when a watchdog, or a sweep, should look at an agent.
  KEYS[1]  sorted set: agents by the moment at which to look at them, in microseconds
  ARGV[1]  agent_id  ARGV[2]  how long from now, in microseconds
  returns  the moment
]]
local time = redis.call('TIME')
local moment = time[1] * 1000000 + time[2] + ARGV[2]
local function set() return redis.call('ZADD', KEYS[1], 'CH', string.format('%.0f', moment), ARGV[1]) end
-- Each call gives another one, so that it can be told from the one before.
if set() == 0 then
  moment = moment - 1
  set()
end
return moment
