--[[ schedule_claim: return due agents, and give them a later due time, so that no other caller gets them.
  KEYS     agents by due time (see schedule_add.lua): on a cluster one shard, elsewhere all of them
  ARGV[1]  the most agents to return of each shard  ARGV[2]  how much later, in microseconds from now
  returns  {agent_id, its new due time, agent_id, its new due time, ...}
]]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due_at, reply = now + ARGV[2], {}
for _, key in ipairs(KEYS) do
  local scores = {}
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
  for _, agent_id in ipairs(due) do
    reply[#reply + 1], reply[#reply + 2] = agent_id, due_at
    scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', due_at), agent_id
  end
  each(scores, 1, 1000, function(...) redis.call('ZADD', key, ...) end)
end
return reply
