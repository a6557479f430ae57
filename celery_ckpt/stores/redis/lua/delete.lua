--[[ delete: forget an agent.
  KEYS     every key of the agent; KEYS[1] is its hash (see fence.lua)
  returns  {"c:" id of each checkpoint there was}
]]
local ids = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 2) == 'c:' then ids[#ids + 1] = field end
end
redis.call('UNLINK', unpack(KEYS))
return ids
