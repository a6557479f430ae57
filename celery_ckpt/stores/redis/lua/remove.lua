--[[ remove: drop checkpoints, and the part of the log that nobody refers to any more.
  KEYS[1]  hash of the agent    KEYS[2]  the log    KEYS[3]  checkpoints (see save.lua)
  ARGV[1]  seq at which the caller read the checkpoints (see lines.lua)
  ARGV[2]  smallest offset that those which stay refer to   ARGV[3]  id of the newest that stays
  ARGV[4...]  ids to drop
  returns  {how many were there, 1 if it has to be done again: after a save since ARGV[1] only the log
           is left alone, after the removal of ARGV[3] everything is}
]]
local saved_since = (redis.call('HGET', KEYS[1], 'seq') or '0') ~= ARGV[1]
if not saved_since and ARGV[3] ~= '' and redis.call('HEXISTS', KEYS[3], ARGV[3]) == 0 then
  return {0, 1}
end
local removed = 0
each(ARGV, 4, 1000, function(...) removed = removed + redis.call('HDEL', KEYS[3], ...) end)
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('UNLINK', KEYS[2])
  redis.call('HDEL', KEYS[1], 'first', 'latest')
  return {removed, 0}
end
if saved_since then return {removed, 1} end
local agent = redis.call('HMGET', KEYS[1], 'first', 'latest')
local first, low = tonumber(agent[1] or 0), tonumber(ARGV[2])
if low > first then
  redis.call('LTRIM', KEYS[2], low - first, -1)
  redis.call('HSET', KEYS[1], 'first', ARGV[2])
end
if not agent[2] or redis.call('HEXISTS', KEYS[3], agent[2]) == 0 then
  redis.call('HSET', KEYS[1], 'latest', ARGV[3])
end
return {removed, 0}
