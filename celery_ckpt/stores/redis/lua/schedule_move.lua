--[[ schedule_move: reschedule agents, or unschedule them, unless their due times have changed.
  KEYS[1]  agents by due time (see schedule_add.lua)
  ARGV     agent_id, its due time, how long from now in microseconds ("": unschedule), agent_id, ...
  returns  how many were changed
]]
local time = redis.call('TIME')
local now, later, removed = time[1] * 1000000 + time[2], {}, {}
for i, due_at in ipairs(due_times(3)) do
  local agent_id, expected, after = unpack(ARGV, 3 * i - 2, 3 * i)
  if due_at == tonumber(expected) then
    if after == '' then
      removed[#removed + 1] = agent_id
    else
      later[#later + 1] = string.format('%.0f', now + after)
      later[#later + 1] = agent_id
    end
  end
end
each(removed, 1, 1000, function(...) redis.call('ZREM', KEYS[1], ...) end)
each(later, 1, 1000, function(...) redis.call('ZADD', KEYS[1], ...) end)
return #removed + #later / 2
