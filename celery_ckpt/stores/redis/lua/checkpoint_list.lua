--[[ checkpoint_list: return all checkpoints of an agent without their messages, and its sequence number.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  the most fields of a hash whose checkpoints are returned
  returns  {seq, policy, 1 if the hash is too long, "c:" id, line, "c:" id, line, ...}
]]
local agent = redis.call('HMGET', KEYS[1], 'tip', 'policy')
local seq = string.match(agent[1] or '', '^%d+') or '0'
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[1]) then return {seq, agent[2] or '', 1} end
local all, reply = redis.call('HGETALL', KEYS[1]), {seq, agent[2] or '', 0}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'c:' then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply
