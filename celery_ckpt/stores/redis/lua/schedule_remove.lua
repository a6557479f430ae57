--[[ schedule_remove: unschedule agents, unless their due times have changed.
  KEYS[1]  agents by due time (see schedule_add.lua)
  ARGV     agent_id, its due time, agent_id, its due time, ...
  returns  how many were unscheduled
]]
local removed = {}
for i, due_at in ipairs(due_times(2)) do
  if due_at == tonumber(ARGV[2 * i]) then removed[#removed + 1] = ARGV[2 * i - 1] end
end
each(removed, 1, 1000, function(...) redis.call('ZREM', KEYS[1], ...) end)
return #removed
