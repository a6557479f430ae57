--[[ unwatch: forget when to look at an agent, unless it was given another moment.
  KEYS[1]  agents by moment (see watch.lua)
  ARGV[1]  agent_id  ARGV[2]  the moment
  returns  1 if it was forgotten, else 0
]]
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
