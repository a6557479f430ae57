--[[ unwatch: forget when to look at some agents, unless they were given other moments.
  KEYS[1]  agents by moment (see watch.lua)
  ARGV     agent_id, its moment, agent_id, its moment, ...
  returns  how many were forgotten
]]
local over = 0
for i = 1, #ARGV, 2 do
  if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i])) == tonumber(ARGV[i + 1]) then
    over = over + redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return over
