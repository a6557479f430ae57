--[[ slices: parts of the log, and which of some checkpoints are still there at this moment.
  KEYS[1]  hash of the agent    KEYS[2]  the log    KEYS[3]  checkpoints (see save.lua)
  ARGV[1]  how many ids         ARGV[2...]  the ids, then start and count of each part
  returns  {1 or 0 for each id, then the text of each part, joined by line feeds}
]]
local ids, reply = tonumber(ARGV[1]), {}
for i = 2, ids + 1 do
  reply[#reply + 1] = redis.call('HEXISTS', KEYS[3], ARGV[i])
end
local first = tonumber(redis.call('HGET', KEYS[1], 'first') or 0)
for i = ids + 2, #ARGV, 2 do
  local from = tonumber(ARGV[i]) - first
  local lines = from < 0 and {} or redis.call('LRANGE', KEYS[2], from, from + ARGV[i + 1] - 1)
  reply[#reply + 1] = table.concat(lines, '\n')
end
return reply
