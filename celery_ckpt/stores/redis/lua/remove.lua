--[[ remove: drop checkpoints, and the part of the log that nobody refers to any more.
  KEYS[1]  hash of the agent    KEYS[2]  the log    KEYS[3]  checkpoints (see save.lua)
  ARGV[1]  seq at which the caller read the checkpoints (see lines.lua)
  ARGV[2]  smallest offset that those which stay refer to   ARGV[3]  id of the newest that stays
  ARGV[4...]  ids to drop
  returns  {how many were there, 1 if the log was left alone because of a save since ARGV[1]}
]]
local removed = 0
each(ARGV, 4, 1000, function(...) removed = removed + redis.call('HDEL', KEYS[3], ...) end)
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('UNLINK', KEYS[2])
  redis.call('HDEL', KEYS[1], 'first', 'latest')
  return {removed, 0}
end
if redis.call('HGET', KEYS[1], 'seq') ~= ARGV[1] then return {removed, 1} end
local first = tonumber(redis.call('HGET', KEYS[1], 'first') or 0)
local low = tonumber(ARGV[2])
if low > first then
  redis.call('LTRIM', KEYS[2], low - first, -1)
  redis.call('HSET', KEYS[1], 'first', ARGV[2])
end
redis.call('HSET', KEYS[1], 'latest', ARGV[3])
return {removed, 0}
