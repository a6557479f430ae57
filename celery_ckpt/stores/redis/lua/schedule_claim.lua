--[[ schedule_claim: the agents whose moment has come, each put off, so that nobody else is told.
  KEYS[1]  agents by moment (see schedule_add.lua)
  ARGV[1]  at most so many  ARGV[2]  how long they are put off, in microseconds
  returns  {agent_id, its new moment, agent_id, its new moment, ...}
]]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local come = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
local moment, reply, moments = now + ARGV[2], {}, {}
for i, agent_id in ipairs(come) do
  reply[2 * i - 1], reply[2 * i] = agent_id, moment
  moments[2 * i - 1], moments[2 * i] = string.format('%.0f', moment), agent_id
end
each(moments, 1, 1000, function(...) redis.call('ZADD', KEYS[1], ...) end)
return reply
