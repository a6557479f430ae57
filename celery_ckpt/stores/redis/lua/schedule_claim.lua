--[[ schedule_claim: return due agents, and give them a later due time, so that no other caller gets them.
  KEYS[1]  agents by due time (see schedule_add.lua)
  ARGV[1]  the most agents to return  ARGV[2]  how much later, in microseconds from now
  returns  {agent_id, its new due time, agent_id, its new due time, ...}
]]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
local due_at, reply, scores = now + ARGV[2], {}, {}
for i, agent_id in ipairs(due) do
  reply[2 * i - 1], reply[2 * i] = agent_id, due_at
  scores[2 * i - 1], scores[2 * i] = string.format('%.0f', due_at), agent_id
end
each(scores, 1, 1000, function(...) redis.call('ZADD', KEYS[1], ...) end)
return reply
