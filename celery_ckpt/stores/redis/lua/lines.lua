--[[ lines: all checkpoints of an agent, without their messages, and the sequence they stand at.
  KEYS[1]  hash of the agent    KEYS[2]  checkpoints (see save.lua)
  returns  {seq, id, line, id, line, ...}
]]
local reply = redis.call('HGETALL', KEYS[2])
table.insert(reply, 1, redis.call('HGET', KEYS[1], 'seq') or '0')
return reply
