--[[ checkpoint_messages: return parts of the log, and which of some checkpoints still exist.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see checkpoint_save.lua)
  ARGV[1]  number of ids        ARGV[2...]  "c:" and id of each, then start and count of each part
  returns  {offset at which the log starts, 1 or 0 for each id,
            then {messages} of each part as far as the log has it}
]]
local first = tonumber(redis.call('HGET', KEYS[1], 'first') or 0)
local ids, reply = tonumber(ARGV[1]), {first}
for i = 2, ids + 1 do
  reply[#reply + 1] = redis.call('HEXISTS', KEYS[1], ARGV[i])
end
for i = ids + 2, #ARGV, 2 do
  local from = tonumber(ARGV[i]) - first
  reply[#reply + 1] = messages(from, from + ARGV[i + 1] - 1)
end
return reply
