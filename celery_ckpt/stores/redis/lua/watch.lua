--[[ watch: say when a watchdog, or a sweep, should look at an agent.
  KEYS[1]  sorted set: agents by the moment at which to look at them, in microseconds
  ARGV[1]  agent_id  ARGV[2]  how long from now, in microseconds
  returns  the moment
]]
local time = redis.call('TIME')
local moment = time[1] * 1000000 + time[2] + ARGV[2]
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) == moment then moment = moment - 1 end
redis.call('ZADD', KEYS[1], string.format('%.0f', moment), ARGV[1])
return moment
