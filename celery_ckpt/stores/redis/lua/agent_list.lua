--[[ agent_list: note in an agent that it is on the schedule of sweeps.
  KEYS[1]  hash of the agent (see shared.lua)
  returns  nothing
]]
local listed = tonumber(redis.call('HGET', KEYS[1], 'listed')) or 0
if listed <= 0 then redis.call('HSET', KEYS[1], 'listed', -listed + 1) end
