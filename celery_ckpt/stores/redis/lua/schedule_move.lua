--[[ schedule_move: reschedule agents, or unschedule them, unless their due times have changed.
  KEYS     agents by due time (see schedule_add.lua): on a cluster one shard, elsewhere those that are needed
  ARGV     for each agent: which of the keys, agent_id, its due time, how long from now in microseconds
           ("": unschedule)
  returns  for each agent its new due time; 0: it has none, or it was not changed
]]
local time = redis.call('TIME')
local now, reply = time[1] * 1000000 + time[2], {}
for i = 1, #ARGV, 4 do
  local key, agent_id, before, after = KEYS[tonumber(ARGV[i])], unpack(ARGV, i + 1, i + 3)
  local due_at = 0
  if tonumber(redis.call('ZSCORE', key, agent_id) or '') == tonumber(before) then
    if after == '' then
      redis.call('ZREM', key, agent_id)
    else
      due_at = now + after
      -- Each change sets a different due time, so that it can be distinguished from the one before.
      if due_at == tonumber(before) then due_at = due_at - 1 end
      redis.call('ZADD', key, string.format('%.0f', due_at), agent_id)
    end
  end
  reply[#reply + 1] = due_at
end
return reply
