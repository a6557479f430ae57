--[[ delete: forget an agent.
  KEYS     every key of the agent; KEYS[3] has its checkpoints (see save.lua)
  returns  how many checkpoints there were
]]
local count = redis.call('HLEN', KEYS[3])
redis.call('UNLINK', unpack(KEYS))
return count
