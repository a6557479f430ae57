--[[ schedule_remove: forget when to look at some agents, unless they were given other moments.
  KEYS[1]  agents by moment (see schedule_add.lua)
  ARGV     agent_id, its moment, agent_id, its moment, ...
  returns  how many were forgotten
]]
local over = {}
for i, moment in ipairs(moments(2)) do
  if moment == tonumber(ARGV[2 * i]) then over[#over + 1] = ARGV[2 * i - 1] end
end
each(over, 1, 1000, function(...) redis.call('ZREM', KEYS[1], ...) end)
return #over
