--[[ remove: drop checkpoints, and the part of the log that nobody refers to any more.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see save.lua)
  ARGV[1]  seq at which the caller read the checkpoints (see lines.lua)
  ARGV[2]  smallest offset that those which stay refer to
  ARGV[3]  "c:" and the id of the newest that stays; "": none stays
  ARGV[4...]  "c:" and the ids to drop
  returns  {how many were there, 1 if it has to be done again: after a save since ARGV[1], or if others
           are there than the caller read, only the log is left alone; after the removal of ARGV[3]
           everything is}
]]
local function any_left()
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 2) == 'c:' then return true end
  end
end

local agent = redis.call('HMGET', KEYS[1], 'tip', 'first')
local seq, latest = tip(agent[1])
local saved_since = (seq or 0) ~= tonumber(ARGV[1])
if not saved_since and ARGV[3] ~= '' and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then
  return {0, 1}
end
local removed = 0
each(ARGV, 4, 1000, function(...) removed = removed + redis.call('HDEL', KEYS[1], ...) end)
if saved_since then return {removed, 1} end
if ARGV[3] == '' then
  -- An agent that was deleted and made anew meanwhile can stand at the same seq.
  if any_left() then return {removed, 1} end
  redis.call('UNLINK', KEYS[2])
  redis.call('HDEL', KEYS[1], 'first')
  if agent[1] then redis.call('HSET', KEYS[1], 'tip', ARGV[1]) end
  return {removed, 0}
end
if tonumber(ARGV[2]) > tonumber(agent[2] or 0) then
  redis.call('LTRIM', KEYS[2], ARGV[2] - (agent[2] or 0), -1)
  redis.call('HSET', KEYS[1], 'first', ARGV[2])
end
if not latest or redis.call('HEXISTS', KEYS[1], latest) == 0 then
  redis.call('HSET', KEYS[1], 'tip', ARGV[1] .. ' ' .. ARGV[3])
end
return {removed, 0}
