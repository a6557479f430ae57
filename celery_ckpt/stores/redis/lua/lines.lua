--[[ lines: all checkpoints of an agent, without their messages, and the sequence they stand at.
  KEYS[1]  hash of the agent (see fence.lua)
  returns  {seq, "c:" id, line, "c:" id, line, ...}
]]
local all, reply = redis.call('HGETALL', KEYS[1]), {'0'}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'c:' then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  elseif all[i] == 'tip' then
    reply[1] = string.match(all[i + 1], '^%d+') or '0'
  end
end
return reply
